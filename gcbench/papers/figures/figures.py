"""Figures as files: those of a table, of a study, or of everything that ran."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from gcbench.core.errors import ConfigError, name_first, near
from gcbench.papers.figures.study_figures import STUDIES, TABLE_STUDIES
from gcbench.papers.ladder.ladder_fit import draw_penalties, fits_of
from gcbench.papers.ladder.ladder_map import answer_of, draw_answer
from gcbench.papers.ladder.ladder_map import as_json as as_json_of_ladder
from gcbench.papers.reach.reach import Race, map_of, race_of
from gcbench.papers.reach.reach_map import as_json, draw_firsts, measured_links
from gcbench.papers.tables.measured import StudyResult, find_study
from gcbench.papers.tables.rows import Row, group_runs
from gcbench.papers.tables.tables import Table, read_table, tables_of
from gcbench.runner.config.budget import PAPER
from gcbench.runner.drawing import KEPT_KINDS, RC
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.figures.bars import draw_breakdown
from gcbench.runner.report.figures.draw import (
    AXES,
    RUNS,
    WHICH,
    Pictures,
    draw_runs,
    draw_scaling,
    figures_of_curves,
    time_to_score,
    write_pictures,
)
from gcbench.runner.report.figures.series import (
    LABELS,
    NAMED,
    Drawn,
    Series,
    not_drawn,
    workload_of,
)
from gcbench.runner.report.figures.tradeoff import (
    Panel,
    draw_accuracy_ratio,
    draw_tradeoff,
    score_of,
)

ALL = "all"
TITLED = 2  # workloads that a title names; of more it says the number


@matplotlib.rc_context(RC)
def draw(
    asked: str,
    runs: Sequence[RecordedRun],
    folder: Path,
    budget: str = PAPER,
    overrides: tuple[str, ...] = (),
    results: Sequence[str] = (),
    kinds: Sequence[str] = KEPT_KINDS,
) -> list[str]:
    """Draw what `figure=asked` asks for, and return the path of every file that was written.

    The files are of `kinds` below `folder`. For a figure without data, the list has a line that
    says how to get the data. `asked` is a table (orq/figure2), a paper, a study (ecq_stability),
    which_method, runs (everything that ran), or all. Raises ConfigError if it is none of these,
    or if `overrides` are given for figures that show no runs of a table's rows.
    """
    tables = (
        [] if asked in (WHICH, RUNS, *STUDIES) else [read_table(name) for name in _tables(asked)]
    )
    if overrides and all(table.study for table in tables):
        raise ConfigError(
            f"with={overrides[0]}: figure={asked} shows no runs of a table's rows; leave it out"
        )
    lines = [
        line
        for name in (WHICH, RUNS)
        if asked in (name, ALL)
        for line in draw_runs(name, runs, folder, budget, kinds)
    ]
    for name in STUDIES:
        if asked in (name, ALL):
            lines += write_pictures(
                figures_of_study(name, results),
                folder,
                PAPER,
                f"there is no such study yet; type gcbench papers studies {name}",
                kinds,
            )
    for table in tables:
        lines += write_pictures(
            figures_of_table(table, runs, budget, overrides, results),
            folder,
            PAPER if table.study else budget,
            f"no run of budget={budget} has what it shows; gcbench report table={table.name} says "
            "what to run",
            kinds,
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
    if table.ladder:
        answer = answer_of(table, rows)
        yield f"{table.name}/map", draw_answer(answer) if answer else None
        if answer:
            yield f"{table.name}/map", json.dumps(as_json_of_ladder(answer)) + "\n"
        fits = fits_of(table.ladder, rows)
        yield f"{table.name}/penalty", draw_penalties(fits) if fits else None
        return
    if table.reach:
        lengths = [name for name in table.reach.targets if name != budget]
        race = race_of(table, rows, [group_runs(table, runs, name) for name in lengths])
        yield from _map(table, race, results)
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
            yield from figures_of_curves(
                table.name, drawn, asked.y, asked.x, asked.by_group, asked.optimum
            )
        case "breakdown":
            yield f"{table.name}/breakdown", draw_breakdown(drawn, asked.by_group, asked.caption)
        case "scaling":
            yield f"{table.name}/scaling", draw_scaling(drawn)
        case "histograms":
            raise ConfigError(f"{table.name}: figure.kind=histograms is for tables of a study")
        case None:
            yield from _of_scores(table, drawn, asked.by_group)


def _map(table: Table, race: Race | None, results: Sequence[str]) -> Pictures:
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
    yield from figures_of_curves(table.name, drawn, [score, "train_loss"], AXES)
    yield f"{table.name}/time-to-{score}", time_to_score(drawn, score)


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


def series_of_rows(rows: Sequence[Row], by_group: bool = False) -> Drawn:
    """Return the series of a table's rows, in the table's order.

    With `by_group`, rows with the same title look the same in the panels of all groups.
    """
    looks: dict[str, dict[str, int]] = {}  # by family: the index of each title
    series = []
    for row in rows:
        if row.done:
            family, label = row.done[0].result.choices["compressor"], row.spec.label
            numbers = looks.setdefault(family, {})
            nth = numbers.setdefault(row.spec.title if by_group else label, len(numbers))
            timed = row.fewer_workers is None
            series.append(
                Series(label, family, row.done, nth, row.spec.group or "", row.spec.title, timed)
            )
    ran = list(dict.fromkeys(workload_of(run).title for s in series for run in s.runs))
    title = "; ".join(ran) if len(ran) <= TITLED else f"{len(ran)} workloads"
    return Drawn(series, _absent(rows), title)


def _absent(rows: Sequence[Row]) -> list[str]:
    missing = [row.spec.label for row in rows if row.spec.experiment and not row.runs]
    note = [f"Missing: {name_first(missing, NAMED)}."] if missing else []
    return note + not_drawn((row.spec.label, run) for row in rows for run in row.runs)
