"""What a run leaves behind."""

from gcbench.records.files import RunFiles
from gcbench.records.loggers import Logger, start_logger
from gcbench.records.summary import ProgressDisplay, print_summary
from gcbench.records.terminal import console

__all__ = ["Logger", "ProgressDisplay", "RunFiles", "console", "print_summary", "start_logger"]
