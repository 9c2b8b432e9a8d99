"""Figures of everything that ran, and pictures as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcbench.runner.config.budget import PAPER
from gcbench.runner.drawing import (
    KINDS,
    RC,
    finish,
    logarithmic,
    name_files,
    panels,
    save,
    style_of_method,
    tick_counts,
)
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.figures.bars import draw_breakdown, draw_time_to_score, target_of
from gcbench.runner.report.figures.curves import draw_curves
from gcbench.runner.report.figures.series import (
    EXECUTED,
    Drawn,
    Series,
    add_caption,
    caveats,
    series_by_task,
    series_by_workload,
    untimed,
)
from gcbench.runner.report.figures.tradeoff import draw_accuracy_ratio, score_of

WHICH, RUNS = "which_method", "runs"
AXES = ("epoch", "bits", "seconds")
# Pairs of a file name and a figure, which is None if no run has the data that it shows, or the
# text of a JSON file.
Pictures = Iterator[tuple[str, Figure | str | None]]


def write_pictures(
    pictures: Pictures, folder: Path, budget: str, absent: str, kinds: Sequence[str] = KINDS
) -> list[str]:
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
            lines.append(name_files(save(figure, folder / f"{name}{suffix}", kinds)))
    return lines


WANTS_TWO = (
    "no figure; it needs finished runs of two settings of one workload that send different amounts"
)
WANTS_CURVES = "no figure; it needs finished runs with curves"


def describe_unfinished(budget: str, finished: Sequence[str]) -> str:
    """Return the sentence for a budget without finished runs, with the budgets that have some."""
    typed = f"; type budget={', '.join(finished)}" if finished else ""
    return f"no figure; there is no finished run of budget={budget}{typed}"


def draw_runs(
    asked: str, runs: Sequence[RecordedRun], folder: Path, budget: str, kinds: Sequence[str] = KINDS
) -> list[str]:
    """Draw which_method, or runs: everything that ran; return a line for every figure."""
    at_budget = [run for run in runs if run.budget == budget]
    finished = sorted({run.budget for run in runs if run.done})
    if asked == WHICH:
        pictures, wants = figures_of_methods(at_budget, budget), WANTS_TWO
    else:
        pictures, wants = figures_of_runs_with_data(at_budget), WANTS_CURVES
    absent = wants if budget in finished else describe_unfinished(budget, finished)
    with rc_context(RC):
        return write_pictures(pictures, folder, budget, absent, kinds)


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
    for workload, plain in series_by_workload(runs).items():
        place, drawn = f"{RUNS}/{workload.name}", add_caption(workload, plain)
        yield from figures_of_curves(
            place, drawn, [score_of(drawn.series) or "loss", "train_loss", "relative_error"], AXES
        )
        yield f"{place}/breakdown", draw_breakdown(drawn)
        yield f"{place}/accuracy_ratio", draw_accuracy_ratio({"": drawn})
        if score := score_of(drawn.series):
            yield f"{place}/time_to_{score}", time_to_score(drawn, score)
    for name, drawn in series_by_task(runs).items():
        yield f"{RUNS}/scaling-{name}", draw_scaling(drawn)


def figures_of_curves(
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


def time_to_score(drawn: Drawn, score: str) -> Figure | None:
    goal = target_of(drawn, score)
    return None if goal is None else draw_time_to_score(drawn, score, goal)


COUNT = re.compile(r"[,;]?\s*\d+ (workers?|GPUs?|nodes?)\s*[,;]?\s*")  # within a row's title


def method_of(series: Series) -> str:
    """Return the name of a method: the row's title without its number of workers."""
    return COUNT.sub("", series.short).strip(" ,") or series.short


def draw_scaling(drawn: Drawn) -> Figure | None:
    """Draw throughput over the number of workers, relative to full precision on one worker.

    Each group of rows has a panel, with two logarithmic axes. Return None if no group has a run
    of one worker.
    """
    timed = [s for s in drawn.series if s.values("samples_per_second")]
    groups = {
        group: [s for s in timed if s.group == group]
        for group in dict.fromkeys(s.group for s in timed)
    }
    bases = {
        group: base for group, members in groups.items() if (base := _base(members)) is not None
    }
    if not bases:
        return None
    figure, axes = panels(list(bases))
    for ax, (group, base) in zip(axes, bases.items(), strict=True):
        _panel(ax, groups[group], base, timed)
    methods = {method_of(s): s for s in timed if s.group in bases}
    handles = [
        Line2D([], [], label=name, **style_of_method(s.family, _nth(s, timed)))
        for name, s in methods.items()
    ]
    ideal = Line2D([], [], color="#999999", linewidth=0.8, linestyle=":", label="linear")
    return finish(
        figure,
        [*handles, ideal],
        [
            *drawn.notes,
            *untimed(s for s in drawn.series if s not in timed),
            *_alone(groups, bases),
            *caveats(timed),
        ],
        drawn.title,
    )


def workers_of(series: Series) -> int:
    return series.runs[0].result.workers or 0


def _base(series: Sequence[Series]) -> float | None:
    """Return the samples per second of one worker: in full precision, or else the most."""
    alone = [s for s in series if workers_of(s) == 1]
    exact = [s for s in alone if s.family == "none"]
    return max(
        (float(np.mean(s.values("samples_per_second"))) for s in exact or alone), default=None
    )


def _panel(ax: Axes, series: Sequence[Series], base: float, every: Sequence[Series]) -> None:
    methods = dict.fromkeys(method_of(s) for s in series)
    for method in methods:
        members = sorted((s for s in series if method_of(s) == method), key=workers_of)
        workers = [workers_of(s) for s in members]
        rates = [np.array(s.values("samples_per_second")) / base for s in members]
        means = np.array([rate.mean() for rate in rates])
        error = [means - [rate.min() for rate in rates], [rate.max() for rate in rates] - means]
        ax.errorbar(
            workers,
            means,
            yerr=error,
            **style_of_method(members[0].family, _nth(members[0], every)),
            capsize=2,
            label=method,
        )
    counts = sorted({workers_of(s) for s in series})
    ax.plot(counts, counts, color="#999999", linewidth=0.8, linestyle=":", label="linear")
    ax.set(xlabel="Workers", ylabel="Speed-up over one worker (x)")
    logarithmic(ax, "x", "y")
    tick_counts(ax, counts)


def _nth(series: Series, among: Sequence[Series]) -> int:
    """Return the index of the series' method within its family."""
    methods = list(dict.fromkeys(method_of(s) for s in among if s.family == series.family))
    return methods.index(method_of(series))


def _alone(groups: dict[str, list[Series]], bases: dict[str, float]) -> list[str]:
    without = [group or "the rows" for group in groups if group not in bases]
    return [f"No run of one worker, and so no speed-up: {', '.join(without)}."] if without else []


@rc_context(RC)
def draw_points(runs: Sequence[RecordedRun], folder: Path, suffix: str) -> list[str]:
    """Draw the score over the compression ratio, and name the files.

    There is one picture per workload that has several points. If all of them have the same ratio,
    the score is drawn over epochs.
    """
    files: list[str] = []
    for workload, plain in series_by_workload(runs, EXECUTED).items():
        drawn = add_caption(workload, plain)
        score = score_of(drawn.series)
        if score and len(drawn.series) > 1:
            by_ratio = draw_accuracy_ratio({"": drawn})
            if figure := by_ratio or draw_curves(drawn, score, "epoch"):
                files.append(name_files(save(figure, folder / f"{workload.name}-{suffix}")))
    return files
