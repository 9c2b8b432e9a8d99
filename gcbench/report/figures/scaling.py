"""The figure of the speed-up over the number of workers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcbench.drawing import finish, logarithmic, panels, style_of_method, tick_counts
from gcbench.report.figures.series import Drawn, Series, caveats, untimed

COUNT = re.compile(r"[,;]?\s*\d+ (workers?|GPUs?|nodes?)\s*[,;]?\s*")  # within a row's title


def method_of(series: Series) -> str:
    """Return the name of a method: the row's title without its number of workers."""
    return COUNT.sub("", series.short).strip(" ,") or series.short


def draw_scaling(drawn: Drawn) -> Figure | None:
    """Draw throughput over the number of workers, relative to full precision on one worker.

    Each group of rows has a panel, with two logarithmic axes. Return None if no group has a run
    of one worker.
    """
    timed = [s for s in drawn.series if s.values("images_per_second")]
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
        (float(np.mean(s.values("images_per_second"))) for s in exact or alone), default=None
    )


def _panel(ax: Axes, series: Sequence[Series], base: float, every: Sequence[Series]) -> None:
    methods = dict.fromkeys(method_of(s) for s in series)
    for method in methods:
        members = sorted((s for s in series if method_of(s) == method), key=workers_of)
        workers = [workers_of(s) for s in members]
        rates = [np.array(s.values("images_per_second")) / base for s in members]
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
