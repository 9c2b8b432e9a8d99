"""The files of the figures of a table, a study, or everything that ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from gcbench.config import PAPER, ConfigError, near
from gcbench.drawing import RC, save
from gcbench.records.store import RecordedRun
from gcbench.report.figures.bars import breakdown
from gcbench.report.figures.curves import curves
from gcbench.report.figures.reach import time_to_score
from gcbench.report.figures.scaling import scaling
from gcbench.report.figures.series import Drawn, of_rows, of_runs, of_workers
from gcbench.report.figures.studies import STUDIES, predicted_throughput
from gcbench.report.figures.tradeoff import Panel, accuracy_ratio, score_of, tradeoff
from gcbench.report.rows import group_runs
from gcbench.report.study import Study, find_study
from gcbench.report.tables import Table, read_table, tables_of

WHICH, RUNS, ALL = "which_method", "runs", "all"
AXES = ("epoch", "bits", "seconds")
Pictures = Iterator[
    tuple[str, Figure | None]
]  # the name of a file; None where no run has what it shows


@matplotlib.rc_context(RC)
def draw(
    asked: str,
    runs: Sequence[RecordedRun],
    folder: Path,
    budget: str = PAPER,
    overrides: tuple[str, ...] = (),
    results: Sequence[str] = (),
) -> list[str]:
    """Draw what `figure=asked` asks for, as svg and png below `folder`.

    Return a line for every file, and for what has no data. `asked` is a table (orq/figure2), a
    paper, a study (ecq_stability), which_method, runs (everything that ran), or all.
    """
    at_budget = [run for run in runs if run.budget == budget]
    special = {
        WHICH: lambda: which_method(at_budget, budget),
        RUNS: lambda: (picture for picture in everything(at_budget) if picture[1]),
    }
    lines = [
        line
        for name, make in special.items()
        if asked in (name, ALL)
        for line in _write(make(), folder, budget, WANTS_TWO)
    ]
    for name in STUDIES:
        if asked in (name, ALL):
            lines += _write(
                of_study(name, results), folder, PAPER, f"gcbench study {name} makes it"
            )
    if asked not in (*special, *STUDIES):
        for name in _tables(asked):
            table = read_table(name)
            lines += _write(
                of_table(table, runs, budget, overrides, results),
                folder,
                budget,
                f"gcbench report table={name} says what to run",
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


def _write(pictures: Pictures, folder: Path, budget: str, how: str = "") -> list[str]:
    lines = []
    for name, figure in pictures:
        suffix = "" if budget == PAPER else f"-{budget}"
        if figure is None:
            remark = how and f"; {how}"
            lines.append(f"{name}: no run of budget={budget} has what it shows{remark}")
        else:
            lines += [str(path) for path in save(figure, folder / f"{name}{suffix}")]
    return lines


WANTS_TWO = "it wants two finished settings of one workload that differ in what they send"


def which_method(runs: Sequence[RecordedRun], budget: str) -> Pictures:
    workloads = {workload.title: drawn for workload, drawn in of_runs(runs).items()}
    yield WHICH, accuracy_ratio(workloads, [] if budget == PAPER else [f"Runs of budget={budget}."])


def everything(runs: Sequence[RecordedRun]) -> Pictures:
    """Yield the figures of every workload, and those over the number of workers."""
    for workload, drawn in of_runs(runs).items():
        place = f"{RUNS}/{workload.name}"
        yield from _curves(
            place, drawn, [score_of(drawn.series) or "loss", "train_loss", "relative_error"], AXES
        )
        yield f"{place}/breakdown", breakdown(drawn)
        yield f"{place}/accuracy_ratio", accuracy_ratio({workload.title: drawn})
        if score := score_of(drawn.series):
            yield f"{place}/time_to_{score}", time_to_score(drawn, score)
    for name, drawn in of_workers(runs).items():
        yield f"{RUNS}/scaling-{name}", scaling(drawn)


def of_table(
    table: Table,
    runs: Sequence[RecordedRun],
    budget: str,
    overrides: tuple[str, ...],
    results: Sequence[str],
) -> Pictures:
    """Yield the figure that stands in the paper.

    Of a table these are the curves of its score and its trade-off.
    """
    spec: Mapping[str, Any] = table.figure or {}
    kind, by_group = spec.get("kind"), spec.get("panels") == "group"
    if table.study:
        if kind:
            yield from _of_study_table(table, results)
        return
    drawn = of_rows(group_runs(table, runs, budget, overrides), by_group)
    if kind == "curves":
        yield from _curves(table.name, drawn, _list(spec["y"]), _list(spec["x"]), by_group)
    elif kind == "breakdown":
        yield f"{table.name}/breakdown", breakdown(drawn, by_group, spec.get("caption"))
    elif kind == "scaling":
        yield f"{table.name}/scaling", scaling(drawn)
    elif kind in ("accuracy_ratio", None):
        yield from _of_scores(table, drawn)
    else:
        raise ConfigError(f"{table.name}: figure kind {kind} is not known")


def _of_scores(table: Table, drawn: Drawn) -> Pictures:
    score = score_of(drawn.series) or (str(table.chooser.measure) if table.chooser else None)
    if score is None:
        return
    groups = (
        dict.fromkeys(s.group for s in drawn.series)
        if table.figure and table.figure.get("panels") == "group"
        else [""]
    )
    parts = {
        group: Drawn([s for s in drawn.series if group in ("", s.group)], drawn.notes)
        for group in groups
    }
    yield f"{table.name}/{score}-over-ratio", accuracy_ratio(parts)
    if links := [column for column in table.columns if column.network]:
        yield (
            f"{table.name}/{score}-over-exchange",
            tradeoff({c.title: Panel(drawn, str(c.measure), c.settings) for c in links}),
        )
    yield from _curves(table.name, drawn, [score, "train_loss"], AXES)
    yield f"{table.name}/time-to-{score}", time_to_score(drawn, score)


def _curves(
    place: str, drawn: Drawn, what: Sequence[str], over: Sequence[str], by_group: bool = False
) -> Pictures:
    for y in what:
        for x in over:
            yield f"{place}/{y}-over-{x}", curves(drawn, y, x, by_group)


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def _study(name: str, results: Sequence[str]) -> Study | None:
    path_and_study = find_study(name, results)
    return path_and_study[1] if path_and_study else None


def of_study(name: str, results: Sequence[str]) -> Pictures:
    study = _study(name, results)
    yield f"studies/{name}", STUDIES[name](study) if study else None


def _of_study_table(table: Table, results: Sequence[str]) -> Pictures:
    study = _study(str(table.study), results)
    make = STUDIES.get(str(table.study))
    what = str((table.figure or {})["kind"])
    if study is None:
        yield f"{table.name}/{what}", None
    else:
        yield (
            f"{table.name}/{what}",
            make(study, [r.title for r in table.rows])
            if make
            else predicted_throughput(table, study),
        )
