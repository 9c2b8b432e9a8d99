"""The files that a run leaves behind."""

from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.loggers import Logger, start_logger
from gcbench.runner.records.summary import ProgressDisplay, print_summary

__all__ = ["Logger", "ProgressDisplay", "RunFiles", "print_summary", "start_logger"]
