"""The subcommands of `gcbench`, to which others may add their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple


class Subcommand(NamedTuple):
    """A word after `gcbench`, perhaps with words of its own."""

    module: str  # imported only when the subcommand is called
    function: str  # called with the remaining arguments
    about: str
    parts: Mapping[str, Subcommand] = {}

    def start(self, arguments: Sequence[str]) -> None:
        getattr(import_module(self.module), self.function)(arguments)


SUBCOMMANDS = {
    "again": Subcommand(
        "gcbench.runner.command.again",
        "again",
        "a run once more, by its hash, with more key=value after it",
    ),
    "report": Subcommand(
        "gcbench.runner.report.command",
        "report",
        "results of any runs: tables by name, figures, html, diff A B",
    ),
    "runs": Subcommand(
        "gcbench.runner.report.command",
        "runs",
        "everything that ran, selected by any key; rm, where: by hash",
        {
            "rm": Subcommand("gcbench.runner.command.folders", "remove", "removes runs"),
            "where": Subcommand("gcbench.runner.command.folders", "where", "the folder of a run"),
        },
    ),
    "methods": Subcommand(
        "gcbench.runner.check.command",
        "methods",
        "all methods: what they promise, and what they send, measured",
    ),
    "predict": Subcommand(
        "gcbench.runner.predict.command",
        "predict_steps",
        "times of steps on clusters, and where compression pays",
    ),
    "check": Subcommand(
        "gcbench.runner.check.command",
        "check",
        "whether a method of your own keeps what every method promises",
    ),
    "bench": Subcommand(
        "gcbench.runner.command.hydra_run",
        "bench",
        "times of methods beside copies of the same bytes",
    ),
    "example": Subcommand(
        "gcbench.runner.command.example",
        "example",
        "copies of a training loop, a notebook, files of jobs for clusters",
    ),
}
RENAMED: dict[str, str] = {}  # what a subcommand was called, and what to type today
