"""The files that a run leaves behind."""

from gcbench.records.files import RunFiles
from gcbench.records.loggers import Logger, start_logger
from gcbench.records.summary import ProgressDisplay, print_summary

__all__ = ["Logger", "ProgressDisplay", "RunFiles", "print_summary", "start_logger"]
