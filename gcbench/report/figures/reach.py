"""Time to accuracy: steps, bits and seconds until a score is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcbench.drawing import finish, panels, style_of_method
from gcbench.records.metrics import where_reached
from gcbench.report.figures.axes import LABELS, label_of
from gcbench.report.figures.bars import BAR, headings_of, name_rows
from gcbench.report.figures.series import Drawn, Series
from gcbench.report.figures.tracks import track
from gcbench.report.measures import LOWER

SPENDING = ("step", "bits", "seconds")
REACH = 0.98  # the part of full precision's score that is to be reached


def target_of(drawn: Drawn, y: str) -> float | None:
    """Return the target score, a little worse than full precision's best.

    Without a row in full precision, it is a little worse than the median row's best. None if no
    row has such a score.
    """
    best = {s: v for s in drawn.series if (v := _best(s, y))}
    exact = [np.mean(v) for s, v in best.items() if s.family == "none"]
    if not best:
        return None
    level = float(max(exact) if exact else np.median([np.mean(v) for v in best.values()]))
    if y in LOWER:
        return float(f"{min(exact, default=level) / REACH:.3g}")
    return float(f"{level * REACH:.3g}")


def _best(series: Series, y: str) -> list[float]:
    return [
        float(value)
        for run in series.runs
        if (value := (run.result.test or {}).get(f"best_{y}")) is not None
    ]


def draw_time_to_score(drawn: Drawn, y: str, goal: float) -> Figure | None:
    """Draw the steps, bits and seconds until tests, interpolated, first reach `goal`.

    Each quantity has a panel with one bar per row. Return None if no row reaches the goal.
    """
    spent = {x: {s: _until(s, y, x, goal) for s in drawn.series} for x in SPENDING}
    kinds = [x for x in SPENDING if any(spent[x].values())]
    if not kinds:
        return None
    height = 0.75 + BAR * (len(drawn.series) + len(headings_of(drawn.series)))
    figure, axes = panels([""] * len(kinds), height, columns=len(kinds))
    for ax, x in zip(axes, kinds, strict=True):
        rows = dict(zip(name_rows(ax, drawn.series, headings=True), drawn.series, strict=True))
        _draw_bars(ax, {place: s for place, s in rows.items() if spent[x][s]}, spent[x])
        for place, s in rows.items():
            if not spent[x][s]:
                ax.text(
                    0.01,
                    place,
                    _why_not(s, x),
                    transform=ax.get_yaxis_transform(),
                    va="center",
                    fontsize=7,
                )
        ax.set_xlabel(LABELS[x])
        if ax is not axes[0]:
            ax.set_yticklabels([])
    score = label_of(y, drawn.series).lower()
    how = "at most" if y in LOWER else "at least"
    return finish(
        figure,
        (),
        [
            f"Until the score, {score}, is {how} {goal:g}, interpolated between two tests.",
            *drawn.notes,
        ],
        drawn.title,
    )


def _draw_bars(
    ax: Axes, rows: Mapping[int, Series], spent: Mapping[Series, Sequence[float]]
) -> None:
    """Draw a bar for each row at its place: the mean of what its seeds spent, and their range."""
    values = [np.array(spent[s]) for s in rows.values()]
    means, lows, highs = np.array([(v.mean(), v.min(), v.max()) for v in values]).T
    ax.barh(
        list(rows),
        means,
        height=0.7,
        color=[style_of_method(s.family)["color"] for s in rows.values()],
        xerr=np.array([means - lows, highs - means]) if any(len(v) > 1 for v in values) else None,
        ecolor="#444444",
        error_kw={"elinewidth": 0.8, "capsize": 2},
    )


def _why_not(series: Series, x: str) -> str:
    timed = series.timed and all(run.result.seconds for run in series.runs)
    return "no times" if x == "seconds" and not timed else "not reached"


def _until(series: Series, y: str, x: str, goal: float) -> list[float]:
    """Return what each seed spent to reach the goal; empty unless every seed reached it."""
    spending = []
    for run in series.runs_over(x):
        curve = track(run, y, x)
        if curve is not None:
            tests = ({y: score, x: spent} for spent, score in zip(curve.x, curve.y, strict=True))
            reached = where_reached(tests, y, goal, [x])
            spending += [float(reached[x] or 0)] if reached else []
    return spending if len(spending) == len(series.runs) else []
