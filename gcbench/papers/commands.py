"""What the papers add to the commands of the runner: `gcbench papers`, and tables in reports."""

from __future__ import annotations

from collections.abc import Sequence

from gcbench.core.errors import ConfigError, near
from gcbench.runner.command.subcommands import RENAMED, SUBCOMMANDS, Subcommand

OF_PAPERS = {
    "tables": Subcommand(
        "gcbench.papers.tables.report",
        "tables",
        "all tables, and how many of their rows have runs",
    ),
    "deviations": Subcommand(
        "gcbench.papers.tables.report",
        "deviations",
        "settings in which rows deviate from their paper",
    ),
    "claims": Subcommand(
        "gcbench.papers.claims.claims_report",
        "claims",
        "verdicts on the papers' claims, and what would decide the rest",
    ),
    "studies": Subcommand(
        "gcbench.papers.studies.study",
        "studies",
        "what the papers need besides training runs; list",
    ),
    "tune": Subcommand(
        "gcbench.papers.tune",
        "tune",
        "the best learning rate of each row, with the same number of tries for all",
    ),
    "track": Subcommand(
        "gcbench.papers.track.enter",
        "track",
        "whether a method of your own wins: bytes to a loss, five seeds",
    ),
}


def add_commands() -> None:
    """Add what the papers have to the subcommands of `gcbench`; safe to call twice."""
    SUBCOMMANDS["report"] = Subcommand(
        "gcbench.papers.tables.report",
        "report",
        "results, also beside the papers' numbers: tables, figures, html, diff A B",
    )
    SUBCOMMANDS["dashboards"] = Subcommand(
        "gcbench.papers.dashboards", "dashboards", "a workspace and a report in W&B, of any runs"
    )
    SUBCOMMANDS["papers"] = Subcommand(
        "gcbench.papers.commands",
        "papers",
        f"what was done with it: {', '.join(OF_PAPERS)}",
        OF_PAPERS,
    )
    RENAMED.update({name: f"papers {name}" for name in OF_PAPERS})
    RENAMED["study"] = "papers studies"


def papers(typed: Sequence[str]) -> None:
    """List what `gcbench papers NAME` may be; raise ConfigError for another name."""
    name = next(iter(typed), "--help")
    if name in ("-h", "--help"):
        from gcbench.runner.terminal import fold

        names = "\n".join(f"  {known:12}{one.about}" for known, one in OF_PAPERS.items())
        print(fold(f"usage: gcbench papers NAME [key=value ...]\n\nNames\n{names}"))
    else:
        raise ConfigError(
            f"{name}: there is no such subcommand; type gcbench papers "
            f"{near(name, OF_PAPERS) or ', '.join(OF_PAPERS)}"
        )
