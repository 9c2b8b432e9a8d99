"""Group runs by the rows of a table: seeds, learning rates, and other runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.papers.tables.configs import (
    Composition,
    compose,
    compose_row,
    overrides_for,
    read_key,
    settings_at,
)
from gcbench.papers.tables.rates import RATE, Grid, can_run, find_grid, is_same, is_swept
from gcbench.papers.tables.tables import Column, Table, TableRow, overrides_of
from gcbench.runner.config.budget import PAPER
from gcbench.runner.differences import Differences, as_overrides, flat_differences, value_of
from gcbench.runner.identity import ABSENT, BOOKKEEPING, ELSEWHERE, EXECUTION
from gcbench.runner.records.files import ENDED
from gcbench.runner.records.store import RecordedRun, newest, sort_by_age
from gcbench.runner.report.measures import SPLIT, TIMES, measure_by_seed


class Other(NamedTuple):
    """Runs that agree with the row's settings and differ in something else."""

    overrides: list[str]  # as they were typed
    runs: list[RecordedRun]


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a table at one budget."""

    spec: TableRow
    budget: str
    # The reported runs, one per seed, whatever their status, sorted by seed.
    runs: list[RecordedRun] = field(default_factory=list)
    grid: Grid | None = None
    others: list[Other] = field(default_factory=list)
    # Older runs of the same seed and configuration.
    duplicates: list[RecordedRun] = field(default_factory=list)
    typed: tuple[str, ...] = ()  # with=..., as far as the row has the keys
    # The learning rate that was chosen, and the part of the data, if they are not the row's own.
    chosen: tuple[str, ...] = ()

    @property
    def own_overrides(self) -> tuple[str, ...]:
        """Return the overrides that the table adds to the experiment at this budget."""
        return overrides_of(settings_at(self.spec, self.budget))

    @property
    def all_overrides(self) -> tuple[str, ...]:
        """Return the overrides with which the reported runs are made from the experiment."""
        return *self.own_overrides, *self.typed, *self.chosen

    @property
    def needs(self) -> str | None:
        """Return the special hardware and data that the row needs; None if it needs none."""
        if self.spec.experiment is None:
            return None
        needs = compose(self.spec.experiment).run.needs, self.spec.needs
        return ", and ".join(filter(None, needs)) or None

    @property
    def stand_in(self) -> str | None:
        """Return the model that runs in place of the paper's; None if the paper's own runs."""
        if self.spec.experiment is None or self.budget == PAPER:
            return None
        model = compose(self.spec.experiment, self.budget).choices["model"]
        return None if model == compose(self.spec.experiment).choices["model"] else model

    @property
    def fewer_workers(self) -> str | None:
        """Return for example `4 workers in place of 16`; None if there are as many as in the paper.

        Times of fewer workers do not count for the row.
        """
        if self.spec.experiment is None or self.budget == PAPER:
            return None
        at_budget = compose_row(self.spec, self.budget, self.typed)
        at_papers = compose_row(self.spec)
        ours, papers = (one.run.trainer.workers for one in (at_budget, at_papers))
        return None if ours == papers else f"{ours} workers in place of {papers}"

    def values(self, name: str, **settings: Any) -> list[float]:
        """Return the values of a measure, from the runs that have it."""
        return list(self.values_by_seed(name, **settings).values())

    def values_by_seed(self, name: str, **settings: Any) -> dict[int, float]:
        if name in TIMES and self.fewer_workers:
            return {}
        return measure_by_seed(name, self.done, **settings)

    @property
    def done(self) -> list[RecordedRun]:
        return [run for run in self.runs if run.done]

    @property
    def unfinished(self) -> list[RecordedRun]:
        return [run for run in self.runs if not run.done]

    @property
    def borrowed(self) -> list[RecordedRun]:
        """Return the runs of another experiment or backend that have the row's configuration."""
        settings = settings_at(self.spec, self.budget)
        return [
            run
            for run in self.runs
            if run.experiment != self.spec.experiment or not agrees(run, settings)
        ]

    @property
    def every_run(self) -> list[RecordedRun]:
        """Return all runs that the row rests on, the oldest first."""
        grid = self.grid.runs if self.grid else []
        others = [run for other in self.others for run in other.runs]
        return sort_by_age({*self.runs, *grid, *others, *self.duplicates})


RowsByBudget = Mapping[str, Sequence[Row]]


def group_runs(
    table: Table, runs: Sequence[RecordedRun], budget: str, overrides: tuple[str, ...] = ()
) -> list[Row]:
    """Return the table's rows, in its order, with their runs.

    `overrides` are added to every experiment, for example trainer.precision=bf16. Raises
    ConfigError if no row has such a key.
    """
    refuse_unknown_keys(overrides, table.experiments, budget, table.name)
    at_budget = [run for run in runs if run.budget == budget]  # filtered once for all rows
    rows = [find_row(spec, table.chooser, at_budget, budget, overrides) for spec in table.rows]
    return rows if overrides else _show_all(rows, at_budget)


def _show_all(rows: Sequence[Row], runs: Sequence[RecordedRun]) -> list[Row]:
    """Return the rows, the first of each experiment with those of its runs that no row has.

    They contradict what the table adds to the experiment, for example a rate for all parameters.
    """
    shown = {run for row in rows for run in row.every_run}
    left = [run for run in runs if run not in shown]
    complete = []
    for row in rows:
        of_row = [run for run in left if run.experiment == row.spec.experiment]
        left = [run for run in left if run not in of_row]
        if of_row:
            expected = compose_row(row.spec, row.budget).flat
            added = _others({run: flat_differences(run.flat, expected) for run in of_row})
            row = replace(row, others=[*row.others, *added])
        complete.append(row)
    return complete


def refuse_unknown_keys(
    overrides: Iterable[str], experiments: Sequence[str], budget: str, whose: str
) -> None:
    """Raise ConfigError for an override whose key none of these experiments has at the budget.

    The same holds for a key that is not part of a run's identity, because it selects no runs.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        group, _, name = key.partition(".")
        if key == "budget":
            raise ConfigError(f"with={override}: type gcbench report budget={value}, without with=")
        of_trainer = group == "trainer" and name in EXECUTION | BOOKKEEPING
        if of_trainer or group in {*ELSEWHERE, "seed"}:
            raise ConfigError(
                f"with={override}: {key} does not change results, so it selects no runs; type a "
                "key that changes what is computed, for example with=trainer.precision=bf16"
            )
        if not any(overrides_for(experiment, budget, (override,)) for experiment in experiments):
            raise ConfigError(
                f"with={override}: no row of {whose} has such a key; type one that gcbench --help "
                "names"
            )


def find_row(
    spec: TableRow,
    chooser: Column | None,
    runs: Sequence[RecordedRun],
    budget: str,
    overrides: tuple[str, ...] = (),
) -> Row:
    """Return a table row together with its runs, of which `runs` are all at the budget.

    Overrides whose key the row's configuration lacks are ignored. If several learning rates were
    tried, the score `chooser` decides which one is reported.
    """
    if spec.experiment and overrides:
        overrides = overrides_for(spec.experiment, budget, overrides)
    if spec.experiment is None or not can_run(spec, budget, runs, overrides):
        return Row(spec, budget, typed=overrides)
    expected = compose_row(spec, budget, overrides)
    candidates = [
        run
        for run in runs
        if run.experiment == spec.experiment or run.result.identity == expected.identity
    ]
    settings = {key: read_key(expected.config, key) for key in spec.settings}
    of_experiment = {
        run for run in candidates if run.experiment == spec.experiment and agrees(run, settings)
    }
    differences = {
        run: flat_differences(run.flat, expected.flat)
        for run in candidates
        if run in of_experiment and run.result.identity != expected.identity
    }
    others = [run for run in candidates if run not in of_experiment]
    exact, duplicates = _fill_from_others(of_experiment - differences.keys(), others, expected)
    swept = (
        []
        if any(override.startswith(f"{RATE}=") for override in overrides)
        else [run for run, d in differences.items() if is_swept(d)]
    )
    grid = find_grid(exact, swept, expected, chooser) if chooser else None
    shown = {*exact, *duplicates, *(grid.runs if grid else ())}
    return Row(
        spec,
        budget,
        runs=grid.reported if grid else exact,
        grid=grid,
        others=_others({run: d for run, d in differences.items() if run not in shown}),
        duplicates=[*duplicates, *(grid.duplicates if grid else ())],
        typed=overrides,
        chosen=_chosen_overrides(grid, expected),
    )


def _fill_from_others(
    own: Iterable[RecordedRun], others: Iterable[RecordedRun], expected: Composition
) -> tuple[list[RecordedRun], list[RecordedRun]]:
    """Return one run per seed, borrowed if the row has none that ended, and the runs left over."""
    exact, older = newest(own)
    ended = {run.seed for run in exact if run.status in ENDED}
    missed = (run for run in others if is_same(run, expected) and run.seed not in ended)
    borrowed, _ = newest(run for run in missed if run.status in ENDED)
    seeds = {run.seed for run in borrowed}
    kept = [run for run in exact if run.seed not in seeds]
    older += [run for run in exact if run.seed in seeds]
    return sorted([*kept, *borrowed], key=lambda run: run.seed), older


def _chosen_overrides(grid: Grid | None, expected: Composition) -> tuple[str, ...]:
    """Return the overrides that make the reported runs from the row; empty without a chosen rate.

    A rate or a part of the data that is the row's own is left out.
    """
    if grid is None or grid.chosen is None:
        return ()
    parts = {run.flat.get(SPLIT) for run in grid.reported} or {expected.flat.get(SPLIT)}
    chosen = {RATE: grid.chosen, SPLIT: parts.pop()}
    return tuple(
        f"{key}={format_value(value)}"
        for key, value in chosen.items()
        if value != expected.flat.get(key)
    )


def agrees(run: RecordedRun, settings: Mapping[str, Any]) -> bool:
    """Return whether the run has these settings, including the backend, which changes no number."""
    return all(_setting(run, key) == value for key, value in settings.items())


def _setting(run: RecordedRun, key: str) -> Any:
    """Return the value of a run's key; a key that came later has the value of before."""
    value = read_key(run.config, key)
    return value_of(run.flat, key) if value == ABSENT else value


def _others(differences: dict[RecordedRun, Differences]) -> list[Other]:
    by_overrides: dict[tuple[str, ...], list[RecordedRun]] = {}
    for run, differs in differences.items():
        by_overrides.setdefault(tuple(as_overrides(differs)), []).append(run)
    return [Other(list(overrides), runs) for overrides, runs in by_overrides.items()]
