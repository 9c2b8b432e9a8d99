"""Figures as files: those of a table, of a study, or of everything that ran."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from gcbench.config import PAPER, ConfigError, near
from gcbench.drawing import RC, save
from gcbench.records.store import RecordedRun
from gcbench.report.figures.axes import LABELS
from gcbench.report.figures.bars import draw_breakdown
from gcbench.report.figures.curves import draw_curves
from gcbench.report.figures.firsts import draw_firsts, measured_links
from gcbench.report.figures.reach import draw_time_to_score, target_of
from gcbench.report.figures.scaling import draw_scaling
from gcbench.report.figures.series import Drawn, series_by_task, series_by_workload, series_of_rows
from gcbench.report.figures.studies import STUDIES, TABLE_STUDIES
from gcbench.report.figures.tradeoff import Panel, draw_accuracy_ratio, draw_tradeoff, score_of
from gcbench.report.reach import map_of, race_of
from gcbench.report.reach_data import as_json
from gcbench.report.rows import Row, group_runs
from gcbench.report.study import StudyResult, find_study
from gcbench.report.tables import Table, read_table, tables_of

WHICH, RUNS, ALL = "which_method", "runs", "all"
AXES = ("epoch", "bits", "seconds")
# Pairs of a file name and a figure, which is None if no run has the data that it shows, or the
# text of a JSON file.
Pictures = Iterator[tuple[str, Figure | str | None]]


@matplotlib.rc_context(RC)
def draw(
    asked: str,
    runs: Sequence[RecordedRun],
    folder: Path,
    budget: str = PAPER,
    overrides: tuple[str, ...] = (),
    results: Sequence[str] = (),
) -> list[str]:
    """Draw what `figure=asked` asks for, and return the path of every file that was written.

    The files are svg and png below `folder`. For a figure without data, the list has a line that
    says how to get the data. `asked` is a table (orq/figure2), a paper, a study (ecq_stability),
    which_method, runs (everything that ran), or all. Raises ConfigError if it is none of these,
    or if `overrides` are given for figures that show no runs of a table's rows.
    """
    at_budget = [run for run in runs if run.budget == budget]
    special = {
        WHICH: (lambda: figures_of_methods(at_budget, budget), WANTS_TWO),
        RUNS: (lambda: figures_of_runs_with_data(at_budget), WANTS_CURVES),
    }
    finished = sorted({run.budget for run in runs if run.done})
    tables = [] if asked in (*special, *STUDIES) else [read_table(name) for name in _tables(asked)]
    if overrides and all(table.study for table in tables):
        raise ConfigError(
            f"with={overrides[0]}: figure={asked} shows no runs of a table's rows; leave it out"
        )
    lines = [
        line
        for name, (make, wants) in special.items()
        if asked in (name, ALL)
        for line in _write(
            make(),
            folder,
            budget,
            wants if budget in finished else _describe_unfinished(budget, finished),
        )
    ]
    for name in STUDIES:
        if asked in (name, ALL):
            lines += _write(
                figures_of_study(name, results),
                folder,
                PAPER,
                f"there is no such study yet; type gcbench study {name}",
            )
    for table in tables:
        lines += _write(
            figures_of_table(table, runs, budget, overrides, results),
            folder,
            PAPER if table.study else budget,
            f"no run of budget={budget} has what it shows; gcbench report table={table.name} says "
            "what to run",
        )
    return lines


def _tables(asked: str) -> list[str]:
    try:
        return tables_of(asked)
    except ConfigError as error:
        known = [WHICH, RUNS, *STUDIES]
        raise ConfigError(
            f"figure={asked}: type a table, a paper, all, "
            f"or {near(asked, known) or ', '.join(known)}"
        ) from error


def _write(pictures: Pictures, folder: Path, budget: str, absent: str) -> list[str]:
    lines = []
    for name, figure in pictures:
        suffix = "" if budget == PAPER else f"-{budget}"
        if figure is None:
            lines.append(f"{name}: {absent}")
        elif isinstance(figure, str):
            path = folder / f"{name}{suffix}.json"
            path.write_text(figure, encoding="utf-8")
            lines.append(str(path))
        else:
            lines += [str(path) for path in save(figure, folder / f"{name}{suffix}")]
    return lines


WANTS_TWO = (
    "no figure; it needs finished runs of two settings of one workload that send different amounts"
)
WANTS_CURVES = "no figure; it needs finished runs with curves"


def _describe_unfinished(budget: str, finished: Sequence[str]) -> str:
    """Return the sentence for a budget without finished runs, with the budgets that have some."""
    typed = f"; type budget={', '.join(finished)}" if finished else ""
    return f"no figure; there is no finished run of budget={budget}{typed}"


def figures_of_methods(runs: Sequence[RecordedRun], budget: str) -> Pictures:
    """Yield the figure of all methods: scores over compression ratios, one panel per workload."""
    workloads = {workload.title: drawn for workload, drawn in series_by_workload(runs).items()}
    yield (
        WHICH,
        draw_accuracy_ratio(workloads, [] if budget == PAPER else [f"Runs of budget={budget}."]),
    )


def figures_of_runs_with_data(runs: Sequence[RecordedRun]) -> Pictures:
    """Yield the figures of `figures_of_runs` that have data, or a single one without any."""
    yield from [picture for picture in figures_of_runs(runs) if picture[1]] or [(RUNS, None)]


def figures_of_runs(runs: Sequence[RecordedRun]) -> Pictures:
    """Yield the figures of every workload, and those over the number of workers."""
    for workload, drawn in series_by_workload(runs).items():
        place = f"{RUNS}/{workload.name}"
        yield from _curves(
            place, drawn, [score_of(drawn.series) or "loss", "train_loss", "relative_error"], AXES
        )
        yield f"{place}/breakdown", draw_breakdown(drawn)
        yield f"{place}/accuracy_ratio", draw_accuracy_ratio({workload.title: drawn})
        if score := score_of(drawn.series):
            yield f"{place}/time_to_{score}", _time_to_score(drawn, score)
    for name, drawn in series_by_task(runs).items():
        yield f"{RUNS}/scaling-{name}", draw_scaling(drawn)


def figures_of_table(
    table: Table,
    runs: Sequence[RecordedRun],
    budget: str,
    overrides: tuple[str, ...],
    results: Sequence[str],
) -> Pictures:
    """Yield a table's figures: of the kind that its file asks for, by default those of its score.

    The latter are its trade-off with the compression ratio, its curves, and the time to reach it.
    Raises ConfigError if the kind does not fit the table, or it shows what no run has.
    """
    asked = table.figure
    if table.study:
        if asked.kind:
            yield from _figure_of_study_table(table, asked.kind, results)
        return
    rows = group_runs(table, runs, budget, overrides)
    if table.reach:
        yield from _map(table, rows, results)
        return
    drawn = series_of_rows(rows, asked.by_group)
    for name in (*asked.x, *asked.y, *filter(None, [asked.caption])):
        if name not in LABELS:
            raise ConfigError(
                f"{table.name}: figure: nothing is called {name}; type "
                f"{near(name, LABELS) or ', '.join(LABELS)}"
            )
    match asked.kind:
        case "curves":
            yield from _curves(table.name, drawn, asked.y, asked.x, asked.by_group, asked.optimum)
        case "breakdown":
            yield f"{table.name}/breakdown", draw_breakdown(drawn, asked.by_group, asked.caption)
        case "scaling":
            yield f"{table.name}/scaling", draw_scaling(drawn)
        case "histograms":
            raise ConfigError(f"{table.name}: figure.kind=histograms is for tables of a study")
        case None:
            yield from _of_scores(table, drawn, asked.by_group)


def _map(table: Table, rows: Sequence[Row], results: Sequence[str]) -> Pictures:
    race = race_of(table, rows)
    cells = {target: map_of(race, target) for target in race.targets} if race else {}
    yield f"{table.name}/map", draw_firsts(race, cells, measured_links(results)) if race else None
    if race:
        yield f"{table.name}/map", json.dumps(as_json(race, cells)) + "\n"


def _of_scores(table: Table, drawn: Drawn, by_group: bool) -> Pictures:
    score = score_of(drawn.series) or (str(table.chooser.measure) if table.chooser else None)
    if score is None:
        return
    groups = dict.fromkeys(s.group for s in drawn.series) if by_group else [""]
    parts = {
        group: drawn._replace(series=[s for s in drawn.series if group in ("", s.group)])
        for group in groups
    }
    yield f"{table.name}/{score}-over-ratio", draw_accuracy_ratio(parts)
    if links := [column for column in table.columns if column.network]:
        yield (
            f"{table.name}/{score}-over-exchange",
            draw_tradeoff({c.title: Panel(drawn, str(c.measure), c.settings) for c in links}),
        )
    yield from _curves(table.name, drawn, [score, "train_loss"], AXES)
    yield f"{table.name}/time-to-{score}", _time_to_score(drawn, score)


def _curves(
    place: str,
    drawn: Drawn,
    what: Sequence[str],
    over: Sequence[str],
    by_group: bool = False,
    optimum: Mapping[str, float] | None = None,
) -> Pictures:
    for y in what:
        for x in over:
            yield f"{place}/{y}-over-{x}", draw_curves(drawn, y, x, by_group, optimum)


def _time_to_score(drawn: Drawn, score: str) -> Figure | None:
    goal = target_of(drawn, score)
    return None if goal is None else draw_time_to_score(drawn, score, goal)


def _study(name: str, results: Sequence[str]) -> StudyResult | None:
    kept = find_study(name, results)
    return kept.study if kept else None


def figures_of_study(name: str, results: Sequence[str]) -> Pictures:
    """Yield the figure of a study by itself, without a table."""
    study = _study(name, results)
    yield f"studies/{name}", STUDIES[name](study) if study else None


def _figure_of_study_table(table: Table, kind: str, results: Sequence[str]) -> Pictures:
    name = str(table.study)
    if name not in TABLE_STUDIES:
        raise ConfigError(
            f"{table.name}: study {name} has no figure of a table's rows, as "
            f"{' and '.join(TABLE_STUDIES)} have; leave out figure: in its file"
        )
    study = _study(name, results)
    yield f"{table.name}/{kind}", TABLE_STUDIES[name](table, study) if study else None
