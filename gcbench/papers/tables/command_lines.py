"""The commands that run rows of tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from gcbench.papers.tables.configs import experiment_override
from gcbench.runner.config.budget import PAPER
from gcbench.runner.records.store import RecordedRun

Typed = tuple[str, Sequence[str]]  # an experiment, and its overrides
Grid = dict[str, list[str]]  # the keys of a command, with the values of each


def command_lines(rows: Iterable[Typed], budget: str, seeds: Iterable[int]) -> list[str]:
    """Return the commands that run exactly these rows; rows that form a grid share a sweep (-m)."""
    numbers = sorted(set(seeds))
    return [_command(grid, budget, numbers) for grid in _grids(rows)]


def _grids(rows: Iterable[Typed]) -> list[Grid]:
    """Return grids whose points are the rows: one grid per row, then merged key by key."""
    grids: list[Grid] = []
    for experiment, overrides in rows:
        pairs = (
            override.partition("=") for override in [experiment_override(experiment), *overrides]
        )
        grid = {key: [value] for key, _, value in pairs}
        if grid not in grids:
            grids.append(grid)
    for key in dict.fromkeys(key for grid in grids for key in grid):
        merged: list[Grid] = []
        for grid in grids:
            rest = {**grid, key: []}
            twins = (other for other in merged if key in other and {**other, key: []} == rest)
            if twin := next(twins, None):
                twin[key] = [*twin[key], *(v for v in grid[key] if v not in twin[key])]
            else:
                merged.append(grid)
        grids = merged
    return grids


def _command(grid: Grid, budget: str, seeds: Sequence[int]) -> str:
    first, *overrides = [f"{key}={','.join(values)}" for key, values in grid.items()]
    parts = [first, *([f"budget={budget}"] if budget != PAPER else []), *overrides]
    if seeds and seeds != [1]:
        parts.append(f"seed={','.join(map(str, seeds))}")
    several = len(seeds) > 1 or any(len(values) > 1 for values in grid.values())
    return " ".join(["gcbench", *(["-m"] if several else []), *map(shlex.quote, parts)])


def command_of_runs(
    experiment: str, runs: Sequence[RecordedRun], overrides: Sequence[str] = ()
) -> str:
    """Return the command that made these runs of an experiment."""
    # With more processes than cores, launcher=auto would have chosen virtual workers.
    crowded = any(run.result.oversubscribed and run.result.launcher == "local" for run in runs)
    launcher = ["trainer.launcher=local"] if crowded else []
    row = experiment, [*overrides, *launcher]
    (line,) = command_lines([row], runs[0].budget, [run.seed for run in runs])
    return line
