"""Scores over epochs, steps, bits sent by a worker, or time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gcbench.drawing import finish, logarithmic, panels, style_of_method
from gcbench.report.figures.axes import LOSSES, label_of
from gcbench.report.figures.series import Drawn, Series, untimed
from gcbench.report.figures.tracks import Band, band

ERRORS = {"relative_error", "vnmse"}
LOGARITHMIC = {*ERRORS, "distance", "bits"}
EXACT = 1e-5  # relative errors below this are only rounding
FAR = 5  # a loss axis is logarithmic if the highest loss is more than this times the lowest
MARKS = 7  # markers per line


def draw_curves(
    drawn: Drawn,
    y: str,
    x: str,
    by_group: bool = False,
    optimum: Mapping[str, float] | None = None,
) -> Figure | None:
    """Draw `y` over `x`, one line per row: the mean over seeds, with their range as a band.

    With `optimum`, the value of `y` at the optimum by group, the distance from it is drawn on a
    logarithmic axis. Return None if no run has such a curve.
    """
    bands = {s: band(s.runs_over(x), y, x) for s in drawn.series}
    if optimum:
        bands |= _from_optimum(bands, optimum)
    exact = [s for s, b in bands.items() if b is not None and y in ERRORS and b.mean.max() < EXACT]
    without = [s for s, b in bands.items() if b is None]
    shown = {s: b for s, b in bands.items() if b is not None and s not in exact}
    if not shown:
        return None
    groups = _group(shown) if by_group else {"": list(shown)}
    figure, axes = panels(list(groups))
    for members, ax in zip(groups.values(), axes, strict=True):
        _panel(ax, {s: shown[s] for s in members}, y, x)
        if optimum:
            ax.set_ylabel(f"{ax.get_ylabel()}, from the optimum's")
            logarithmic(ax, "y")
    return finish(
        figure,
        _legend(list(shown), by_group),
        [*drawn.notes, *_left_out(x, without, exact)],
        drawn.title,
    )


def _from_optimum(
    bands: Mapping[Series, Band | None], optimum: Mapping[str, float]
) -> dict[Series, Band]:
    """Return each curve's distance from the value at the optimum of its group."""
    away = {}
    for s, b in bands.items():
        if b is not None and s.group in optimum:
            parts = np.abs(np.stack([b.mean, b.low, b.high]) - optimum[s.group])
            away[s] = Band(b.x, parts[0], parts[1:].min(0), parts[1:].max(0))
    return away


def _group(shown: Iterable[Series]) -> dict[str, list[Series]]:
    """Return the series of each panel, by the panel's title.

    Groups with the same runs share a panel, whose title is the model that ran in their place.
    """
    groups: dict[str, list[Series]] = {}
    for series in shown:
        groups.setdefault(series.group, []).append(series)
    alike: dict[tuple[Any, ...], list[str]] = {}
    for group, members in groups.items():
        runs = tuple((s.title, *s.runs) for s in members)
        alike.setdefault(runs, []).append(group)
    panels_of = {}
    for names in alike.values():
        members = groups[names[0]]
        model = members[0].runs[0].result.choices["model"]
        title = names[0] if len(names) == 1 else f"{model}, in place of {', '.join(names)}"
        panels_of[title] = members
    return panels_of


def _panel(ax: Axes, bands: dict[Series, Band], y: str, x: str) -> None:
    for i, (series, b) in enumerate(bands.items()):
        every = max(1, len(b.x) // MARKS)
        ax.plot(
            b.x,
            b.mean,
            **style_of_method(series.family, series.nth),
            markevery=(i % every, every),
            label=series.short,
        )
        if len(series.runs) > 1:
            ax.fill_between(
                b.x,
                b.low,
                b.high,
                color=style_of_method(series.family)["color"],
                alpha=0.15,
                linewidth=0,
            )
    ax.set(xlabel=label_of(x, bands), ylabel=label_of(y, bands))
    if x == "epoch" and max(b.x.max() for b in bands.values()) > 5:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    logarithmic(ax, *(axis for axis, name in (("x", x), ("y", y)) if _is_logarithmic(name, bands)))


def _is_logarithmic(name: str, bands: dict[Series, Band]) -> bool:
    """Return whether an axis is logarithmic: for a loss only if it spans more than a factor FAR."""
    lowest = min(b.mean.min() for b in bands.values())
    highest = max(b.mean.max() for b in bands.values())
    return name in LOGARITHMIC or (name in LOSSES and 0 < FAR * lowest < highest)


def _legend(series: Sequence[Series], by_group: bool) -> list[Line2D]:
    """Return one legend entry for each distinct label."""
    rows: dict[str, dict[str, Any]] = {}
    for s in series:
        rows.setdefault(s.short if by_group else s.label, style_of_method(s.family, s.nth))
    return [Line2D([], [], label=label, **style) for label, style in rows.items()]


def _left_out(x: str, without: Sequence[Series], exact: Sequence[Series]) -> list[str]:
    if x == "seconds":
        notes = untimed(without)
    else:
        labels = ", ".join(s.label for s in without)
        notes = [f"Not drawn: {labels} (no such lines in metrics.jsonl)."] if without else []
    notes += [f"Exact up to rounding: {', '.join(s.label for s in exact)}."] if exact else []
    return notes
