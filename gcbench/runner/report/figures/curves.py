"""Curves of runs from metrics.jsonl: scores over epochs, steps, bits sent by a worker, or time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gcbench.runner.drawing import PANEL_HEIGHT, finish, logarithmic, panels, style_of_method
from gcbench.runner.records.schema import BITS_PER_MIB
from gcbench.runner.records.store import Metrics, RecordedRun
from gcbench.runner.report.figures.series import LOSSES, Drawn, Series, label_of, untimed
from gcbench.runner.report.figures.tradeoff import place_labels

EVENTS = {
    "train_loss": ("train", "loss"),
    "relative_error": ("compression", "relative"),
    "vnmse": ("compression", "relative"),
    "cosine": ("compression", "cosine"),
}
SQUARED = {"vnmse"}
SPENT = {"bits": ("bits_sent_per_worker", 1 / BITS_PER_MIB), "seconds": ("seconds", 1.0)}


class Track(NamedTuple):
    """The curve of one run: three arrays `[n]`."""

    step: np.ndarray
    x: np.ndarray
    y: np.ndarray


class Band(NamedTuple):
    """The curve of several seeds: mean, lowest and highest at each point, in arrays `[n]`."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def track(run: RecordedRun, y: str, x: str) -> Track | None:
    """Return a run's curve of `y` over `x`, or None if metrics.jsonl does not have both."""
    lines = run.read_metrics()
    event, key = EVENTS.get(y, ("test", y))
    points = [line for line in lines if line["event"] == event and line.get(key) is not None]
    steps = [line["step"] for line in points]
    spent = _spent(lines, x, steps) if x in SPENT else np.array([line[x] for line in points], float)
    if not points or spent is None:
        return None
    values = np.array([line[key] for line in points], dtype=float)
    return Track(np.array(steps), spent, values**2 if y in SQUARED else values)


def _spent(lines: Metrics, x: str, steps: Sequence[int]) -> np.ndarray | None:
    """Return the MiB or seconds spent up to each step, interpolated linearly between lines."""
    key, scale = SPENT[x]
    known = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    if not known:
        return None
    at, counted = zip((0, 0.0), *known, strict=True)
    return np.interp(steps, at, counted) * scale


def band(runs: Sequence[RecordedRun], y: str, x: str) -> Band | None:
    """Return mean and range over seeds at each step that all curves have.

    A curve lacks the steps at which it is not finite. None if there is no such step.
    """
    tracks = [curve for run in runs if (curve := track(run, y, x))]
    if not tracks:
        return None
    steps = reduce(np.intersect1d, [curve.step for curve in tracks])
    if not len(steps):
        return None
    at = [np.searchsorted(curve.step, steps) for curve in tracks]
    xs = np.stack([curve.x[places] for curve, places in zip(tracks, at, strict=True)])
    ys = np.stack([curve.y[places] for curve, places in zip(tracks, at, strict=True)])
    return Band(xs.mean(0), ys.mean(0), ys.min(0), ys.max(0))


ERRORS = {"relative_error", "vnmse"}
LOGARITHMIC = {*ERRORS, "distance", "bits"}
EXACT = 1e-5  # relative errors below this are only rounding
FAR = 5  # a loss axis is logarithmic if the highest loss is more than this times the lowest
IN_LEGEND = 8  # lines that a legend names
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
    # Names stand beside their lines where there are too many to look up; rows of a table keep to
    # the legend that they have on its page.
    direct = len(shown) > IN_LEGEND and not any(s.title for s in shown)
    figure, axes = panels(list(groups), PANEL_HEIGHT * (1 + direct), wide=direct)
    for members, ax in zip(groups.values(), axes, strict=True):
        _panel(ax, {s: shown[s] for s in members}, y, x)
        if optimum:
            ax.set_ylabel(f"{ax.get_ylabel()}, from the optimum's")
            logarithmic(ax, "y")
    handles = [] if direct else _legend(list(shown), by_group)
    finish(figure, handles, [*drawn.notes, *_left_out(x, without, exact)], drawn.title)
    if direct:
        named = [(float(b.x[-1]), float(b.mean[-1]), s.label) for s, b in shown.items()]
        place_labels(axes, [named], [[list(zip(b.x, b.mean, strict=True)) for b in shown.values()]])
    return figure


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
        color = style_of_method(series.family)["color"]
        if len(series.runs) > 1 and len(b.x) == 1:  # a band of one point would have no width
            whiskers = [b.mean - b.low, b.high - b.mean]
            ax.errorbar(b.x, b.mean, whiskers, color=color, capsize=2, elinewidth=0.8)
        elif len(series.runs) > 1:
            ax.fill_between(
                b.x,
                b.low,
                b.high,
                color=color,
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
