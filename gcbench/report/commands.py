"""The command lines that make rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from gcbench.records.store import RecordedRun
from gcbench.report.configs import PAPER, experiment_word
from gcbench.report.rows import Row
from gcbench.report.tables import Table


def command(
    experiments: Sequence[str], budget: str, seeds: Iterable[int], words: Sequence[str] = ()
) -> str:
    """One command for rows of one group; a sweep (-m) where there are several runs."""
    group = experiments[0].rpartition("/")[0]
    rows = ",".join(experiment.rpartition("/")[2] for experiment in experiments)
    numbers = sorted(set(seeds))
    parts = [
        experiment_word(f"{group}/{rows}"),
        *([f"budget={budget}"] if budget != PAPER else []),
        *words,
    ]
    if numbers and numbers != [1]:
        parts.append(f"seed={','.join(map(str, numbers))}")
    several = len(experiments) > 1 or len(numbers) > 1
    return " ".join(["gcbench", *(["-m"] if several else []), *map(shlex.quote, parts)])


def of_runs(experiment: str, runs: Sequence[RecordedRun], words: Sequence[str] = ()) -> str:
    crowded = any(run.result.oversubscribed and run.result.launcher == "local" for run in runs)
    launcher = (
        ["trainer.launcher=local"] if crowded else []
    )  # where auto would have taken virtual workers
    return command([experiment], runs[0].budget, [run.seed for run in runs], [*words, *launcher])


def of_missing(table: Table, rows: Sequence[Row]) -> str:
    """For rows of one budget and group; with the paper's number of seeds where the paper's setting is run."""
    seeds = range(1, (table.seeds or 1) + 1) if rows[0].budget == PAPER else [1]
    return command([str(row.spec.experiment) for row in rows], rows[0].budget, seeds, rows[0].words)
