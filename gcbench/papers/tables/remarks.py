"""The sections below a table: missing and failed runs, notes, commands and origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gcbench.core.fields import format_value
from gcbench.papers.tables.command_lines import command_lines, command_of_runs
from gcbench.papers.tables.rates import RATE, Rate, group_by_label, overrides_of_run
from gcbench.papers.tables.rows import Row, RowsByBudget
from gcbench.papers.tables.tables import Column, Table
from gcbench.runner.config.budget import PAPER
from gcbench.runner.records.older import lost_error
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import DIRTY, Heading, Section, Summary, format_summary
from gcbench.runner.report.listing import machine_of, made_by, older_than
from gcbench.runner.report.measures import DEFINITIONS, SPLIT, TIMES, VALID, is_infinite, measure

ERRORS = {"relative_error", "vnmse", "cosine"}


def sections(
    table: Table, groups: RowsByBudget, budget: str, deviations: Iterable[str]
) -> list[Section]:
    """Return the sections below a table, without empty ones."""
    rows = [row for name in groups for row in groups[name] if row.spec.experiment]
    every = [
        Section("Runs that did not end well", [line for row in rows for line in _unfinished(row)]),
        Section("Missing, and what to run", _missing(table, groups, budget)),
        Section("Needs", _needs(groups[budget])),
        Section("Learning rates", [_grid(row) for row in rows if row.grid]),
        Section(
            "Also ran, and is not in the table",
            [line for row in rows for line in _others(table, row)],
        ),
        Section("Notes", list(_notes(table, groups[budget], rows, deviations))),
        Section(
            "Commands that made the rows",
            list(dict.fromkeys(line for row in rows for line in _commands_of(row))),
        ),
        Section("Made by", _made_by([run for row in rows for run in row.runs])),
    ]
    return [section for section in every if section.lines]


def _unfinished(row: Row) -> Iterator[str]:
    tried = [run for rate in (row.grid.rates if row.grid else []) for run in rate.runs]
    for run in dict.fromkeys(run for run in [*row.runs, *tried] if not run.done):
        rate = f", {RATE}={run.config['optimizer']['lr']:g}" if row.grid else ""
        reason = run.result.reason or "no reason was written"
        yield f"{_where(row)}, seed {run.seed}{rate}: {run.status}: {reason}"


def _where(row: Row) -> str:
    return row.spec.label + (f" (budget={row.budget})" if row.budget != PAPER else "")


def _missing(table: Table, groups: RowsByBudget, budget: str) -> list[str]:
    lines = []
    for name, rows in groups.items():
        wanted = any((column.budget or budget) == name for column in table.columns)
        missing = [row for row in rows if row.spec.experiment and not row.runs and wanted]
        alone = [line for row in missing for line in _commands(table, [row])]
        sweeps = [line for line in _commands(table, missing) if line not in alone]
        if name == budget or not sweeps:
            lines += [f"{_where(row)}: {line}" for row, line in zip(missing, alone, strict=True)]
        lines += [f"Several rows at once (budget={name}): {line}" for line in sweeps]
    return lines


def _commands(table: Table, rows: Sequence[Row]) -> list[str]:
    """Return the commands that run these rows, all of one budget.

    At the paper's budget they have as many seeds as the paper averages over, otherwise one.
    """
    if not rows:
        return []
    seeds = range(1, (table.seeds or 1) + 1) if rows[0].budget == PAPER else [1]
    typed = [(str(row.spec.experiment), row.all_overrides) for row in rows]
    return command_lines(typed, rows[0].budget, seeds)


def _needs(rows: Sequence[Row]) -> list[str]:
    """Return each need once, with the rows that have it."""
    labels_by_need: dict[str, list[str]] = {}
    for row in rows:
        if row.needs:
            labels_by_need.setdefault(row.needs, []).append(row.spec.label)
    return [
        f"{needs}: {'all rows' if len(labels) == len(rows) else ', '.join(labels)}"
        for needs, labels in labels_by_need.items()
    ]


def _grid(row: Row) -> str:
    grid = row.grid
    assert grid is not None
    rates = ", ".join(_rate(rate) for rate in grid.rates)
    how = (
        "by validation, on a part of the data that is not reported"
        if grid.validated
        else f"on the {grid.split} split, which is reported too"
    )
    if len({len(rate.runs) for rate in grid.rates}) > 1:
        how += ", by seeds that rates share"
    outcome = (
        f"{grid.chosen:g} is reported, chosen {how}"
        if grid.chosen is not None
        else "none ended well with all its seeds"
    )
    tries = f"{grid.tries} tries, {grid.measure} for {RATE} = {rates}"
    return f"{_where(row)}: {tries}; {outcome}"


def _rate(rate: Rate) -> str:
    bad = [run.status for run in rate.runs if not run.done]
    n = f"n={len(rate.runs)}"
    if rate.score is None:
        return f"{rate.lr:g}: {', '.join(dict.fromkeys(bad)) or 'no score'} ({n})"
    return f"{rate.lr:g}: {rate.score:.4g} ({n})"


def _others(table: Table, row: Row) -> Iterator[str]:
    for other in row.others:
        done = [run for run in other.runs if run.done]
        scores = [
            text
            for column in table.columns
            if column.budget in (None, row.budget)
            if (text := _describe_measure(column, done))
        ]
        bad = [f"seed {run.seed} {run.status}" for run in other.runs if not run.done]
        facts = "; ".join([*scores, *bad]) or "no numbers"
        yield f"{_where(row)} with {' '.join(other.overrides)}: {facts}"


def _describe_measure(column: Column, runs: Sequence[RecordedRun]) -> str | None:
    measured = [measure(str(column.measure), run.result, **column.settings) for run in runs]
    values = [value for value in measured if value is not None]
    if not values:
        return None
    heading = Heading(column.key, column.title, digits=column.digits)
    unit = f" {column.unit}" if column.unit else ""
    return f"{column.title.lower()} {format_summary(Summary.of(values), heading)}{unit}"


def _notes(
    table: Table, at_budget: Sequence[Row], rows: Sequence[Row], deviations: Iterable[str]
) -> Iterator[str]:
    yield from table.notes
    yield from (f"{row.spec.label}: {row.spec.note}" for row in at_budget if row.spec.note)
    yield from deviations
    if table.seeds and table.seeds > 1:
        yield f"The paper averages over {table.seeds} seeds; n is the number of our seeds"
    runs = [run for row in at_budget for run in row.runs if run.done]
    yield from _part_of_data(at_budget)
    measures = dict.fromkeys(str(column.measure) for column in table.columns)
    if table.study is None:
        yield from (DEFINITIONS[name] for name in measures if name in DEFINITIONS)
        yield from _notes_on_errors(at_budget, measures)
    if "ratio" in measures and {run.result.workers for run in runs} == {1}:
        yield "What the one worker hands over is received by nobody"
    if any(column.measure in TIMES for column in table.columns):
        for fewer in dict.fromkeys(row.fewer_workers for row in at_budget if row.runs):
            if fewer:
                yield f"{fewer}: their times are not the row's, and are left out"
        untimed = [run.result for run in runs if run.result.seconds is None]
        if any(result.has_virtual_workers for result in untimed):
            yield "Virtual workers, several in one process, give accuracy and bits, and no times"
        if any(not result.has_virtual_workers for result in untimed):
            yield "Some runs had too few steps to be timed"
        if any(run.result.oversubscribed and run.result.seconds for run in runs):
            yield "Some times were taken with more processes than cores, so they are unreliable"
        if any(run.result.has_emulated_times for run in runs):
            yield (
                "Some times are from an emulated network (network=emulated), where an exchange "
                "lasts as long as the cost model says"
            )
        for row in at_budget:
            timed = [run.result for run in row.done if run.result.seconds]
            if len(places := dict.fromkeys(map(_place, timed))) > 1:
                yield f"{row.spec.label}: times are means over {' and '.join(places)}"
    for row in rows:
        for name in measures:
            seeds = ", ".join(str(run.seed) for run in row.done if is_infinite(name, run.result))
            if seeds:
                where = f"{_where(row)}, seed {seeds}"
                yield f"{where}: {name} is not finite, so it is left out of the mean"
        for label, borrowed in group_by_label(row.borrowed):
            seeds = ", ".join(str(run.seed) for run in borrowed)
            where = f"{_where(row)}, seed {seeds}"
            yield f"{where}: the run of {label}, whose configuration is the same"


def _part_of_data(rows: Sequence[Row]) -> Iterator[str]:
    """Yield which rows are scored on the validation part of the data, if any are."""
    done = [row for row in rows if row.done]
    labels = [row.spec.label for row in done if row.done[0].flat.get(SPLIT) == VALID]
    if len(labels) == len(done) > 0:
        yield f"All scores are of the validation part of the data ({SPLIT}={VALID})"
    elif labels:
        yield (
            f"{', '.join(labels)}: scores are of the validation part of the data "
            f"({SPLIT}={VALID}); those of the other rows are of the test part, and their rates "
            "were chosen on the validation part"
        )


def _notes_on_errors(rows: Sequence[Row], measures: Iterable[str]) -> Iterator[str]:
    """Yield why rows have no error of compression, if it is in the table."""
    if not ERRORS & set(measures):
        return
    lost = [row.spec.label for row in rows if any(lost_error(run.result) for run in row.done)]
    if lost:
        yield (
            f"{', '.join(lost)}: no error of compression, as these runs are older than its "
            "present measure: they coded clipped gradients or momenta, or 0/1 Adam's steps, and it "
            "was measured by the gradients themselves, or in other steps"
        )
    errors = {row.spec.label: [run.result.compression_error for run in row.done] for row in rows}
    without_scale = [
        label for label, found in errors.items() if any(e and e.direction for e in found)
    ]
    if without_scale:
        yield f"{', '.join(without_scale)}: updates without a scale have a cosine, and no error"


def _commands_of(row: Row) -> Iterator[str]:
    for _, borrowed in group_by_label(row.borrowed):
        if experiment := borrowed[0].experiment:
            yield command_of_runs(experiment, borrowed, overrides_of_run(borrowed[0]))
    own: list[tuple[Sequence[str], list[RecordedRun]]] = []  # overrides, and their runs
    if not_borrowed := [run for run in row.runs if run not in row.borrowed]:
        own.append((row.chosen, not_borrowed))
    own += [(other.overrides, other.runs) for other in row.others]
    if row.grid:
        split = [f"{SPLIT}={VALID}"] if row.grid.validated else []
        for rate in row.grid.rates:
            if split or rate.runs != row.runs:
                own.append(([f"{RATE}={format_value(rate.lr)}", *split], rate.runs))
    for overrides, runs in own:
        every = (*row.own_overrides, *row.typed, *overrides)
        yield command_of_runs(str(row.spec.experiment), runs, every)


def _made_by(runs: Sequence[RecordedRun]) -> list[str]:
    return made_by([run.result for run in runs], f"{DIRTY} ") + older_than(runs)


def _place(result: Result) -> str:
    """Return the machine, and the link if it is known, on which the times of a run depend."""
    link = result.network and result.network.link
    return f"{machine_of(result)}{f', link {link}' if link else ''}"
