"""Horizontal bars, one per row: the phases of a step, and what was spent until a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gcbench.runner.drawing import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    finish,
    panels,
    style_of_method,
)
from gcbench.runner.records.metrics import where_reached
from gcbench.runner.report.figures.curves import track
from gcbench.runner.report.figures.series import LABELS, Drawn, Series, caveats, label_of, untimed
from gcbench.runner.report.measures import LOWER, seconds

BAR = 0.17  # inches per bar, including its gap
FILLS = {
    "data": (GRAY, ""),
    "forward": (ORANGE, ""),
    "backward": (SKY, "////"),
    "encode": (PURPLE, "...."),
    "exchange": (GREEN, ""),
    "wait": (VERMILLION, "\\\\\\\\"),
    "decode": (BLUE, "xxxx"),
    "update": (BLACK, ""),
}
PHASES = tuple(FILLS)


def draw_breakdown(
    drawn: Drawn, by_group: bool = False, caption: str | None = None
) -> Figure | None:
    """Draw one stacked bar per row: the mean time of a step over processes and seeds, by phase.

    The mean of the measure `caption` is added to each row's name. Return None if no run is timed.
    """
    times = {s: _phases(s) for s in drawn.series}
    shown = [s for s, by_phase in times.items() if by_phase]
    if not shown:
        return None
    groups = list(dict.fromkeys(s.group for s in shown)) if by_group else [""]
    members = [[s for s in shown if not by_group or s.group == group] for group in groups]
    figure, axes = panels(
        groups,
        0.75 + BAR * max(len(m) + (0 if by_group else len(headings_of(m))) for m in members),
        wide=not by_group,
    )
    for ax, rows in zip(axes, members, strict=True):
        bars = name_rows(ax, rows, headings=not by_group, caption=caption)
        before = np.zeros(len(rows))
        for phase in PHASES:
            taken = np.array([times[s][phase] for s in rows])
            ax.barh(bars, 1e3 * taken, left=1e3 * before, height=0.75, **_style(phase))
            before += taken
        ax.set_xlabel(LABELS["step_milliseconds"])
    notes = untimed(s for s in drawn.series if s not in shown)
    if caption:
        label = label_of(caption, shown)
        notes.append(f"In brackets: {label[0].lower()}{label[1:]}.")
    notes += caveats(shown)
    handles = [Patch(**_style(phase)) for phase in PHASES]
    return finish(figure, handles, [*drawn.notes, *notes], drawn.title)


def _style(phase: str) -> dict[str, Any]:
    color, hatch = FILLS[phase]
    return {
        "facecolor": color,
        "hatch": hatch,
        "edgecolor": "white",
        "linewidth": 0.3,
        "label": phase,
    }


def _phases(series: Series) -> dict[str, float]:
    """Return the seconds per phase, as means over seeds; empty if no run is timed."""
    timed = [run.result for run in series.runs if series.timed and run.result.seconds]
    return (
        {p: float(np.mean([seconds(result, p) for result in timed])) for p in PHASES}
        if timed
        else {}
    )


def headings_of(series: Sequence[Series]) -> list[str]:
    return [group for group in dict.fromkeys(s.group for s in series) if group not in ("", "none")]


def name_rows(
    ax: Axes, series: Sequence[Series], *, headings: bool, caption: str | None = None
) -> list[int]:
    """Label the rows from the top down, and return the y positions of their bars.

    With `headings`, each group of rows has its name above it. The mean of the measure `caption`
    is added to each row's name.
    """
    labels: list[str] = []
    places, group = [], ""
    for s in series:
        if headings and s.group not in (group, "", "none"):
            labels.append(s.group)
            group = s.group
        places.append(len(labels))
        labels.append(s.short + _caption_of(s, caption))
    ax.set_yticks(range(len(labels)), labels)
    for i, tick in enumerate(ax.get_yticklabels()):
        tick.set_fontweight("normal" if i in places else "bold")
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    return places


def _caption_of(series: Series, caption: str | None) -> str:
    values = series.values(caption) if caption else []
    return f" ({np.mean(values):.3g})" if values else ""


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
