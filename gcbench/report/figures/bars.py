"""Horizontal bars, one per row, with the phases of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gcbench.drawing import (
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
)
from gcbench.report.figures.axes import LABELS, label_of
from gcbench.report.figures.series import Drawn, Series, caveats, untimed
from gcbench.report.measures import seconds

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
