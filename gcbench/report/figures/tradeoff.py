"""The score against the compression ratio: which method gives up least for what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcbench.drawing import finish, logarithmic, look, panels
from gcbench.report.figures.axes import LABELS, label_of
from gcbench.report.figures.labels import place_labels
from gcbench.report.figures.series import Drawn, Series
from gcbench.report.measures import LOWER

CROWDED = 20  # points in a panel from which on numbers stand at them, and names in the legend
SCORES = ("accuracy", "perplexity", "loss")  # the first that a panel's runs have


class Point(NamedTuple):
    series: Series
    ratio: float
    score: float  # mean over seeds
    low: float
    high: float


def score_of(series: Sequence[Series]) -> str | None:
    return next((name for name in SCORES if any(s.values(name) for s in series)), None)


def points_of(series: Sequence[Series], y: str) -> list[Point]:
    """Return the rows that have both, by ratio."""
    values = [(s, s.values("ratio"), s.values(y)) for s in series]
    points = [
        Point(s, float(np.mean(r)), float(np.mean(v)), min(v), max(v))
        for s, r, v in values
        if r and v
    ]
    return sorted(points, key=lambda point: (point.ratio, point.series.label))


def front(points: Sequence[Point], y: str) -> list[Point]:
    """Return the Pareto front, from the lowest ratio: no other point is better in both."""
    sign = -1 if y in LOWER else 1
    return [p for p in points if not any(_beats(q, p, sign) for q in points)]


def _beats(q: Point, p: Point, sign: int) -> bool:
    a, b = (q.ratio, sign * q.score), (p.ratio, sign * p.score)
    return a[0] >= b[0] and a[1] >= b[1] and a != b


def accuracy_ratio(workloads: dict[str, Drawn], notes: Sequence[str] = ()) -> Figure | None:
    """Draw a panel for every workload, with the Pareto front as a line."""
    scores = {title: score_of(drawn.series) for title, drawn in workloads.items()}
    points = {title: points_of(workloads[title].series, y) for title, y in scores.items() if y}
    shown = {
        title: members for title, members in points.items() if len({p.ratio for p in members}) > 1
    }
    if not shown:
        return None
    is_crowded = any(len(members) >= CROWDED for members in shown.values())
    figure, axes = panels(list(shown), 3.6 if is_crowded else 2.6, wide=len(shown) == 1)
    fronts = [front(members, str(scores[title])) for title, members in shown.items()]
    numbers = map(str, count(1))
    named: list[list[tuple[float, float, str]]] = []
    families: dict[str, Line2D] = {}
    explained: list[Line2D] = []
    for ax, (title, members), best in zip(axes, shown.items(), fronts, strict=True):
        _panel(ax, members, best, str(scores[title]))
        if len(members) < CROWDED:
            labels = [_short(p, members) for p in members]
            several = {p.series.family for p in members if _has_several(p, members)}
            families |= {name: _handle(name, name) for name in several}  # else a label says all
        else:
            labels = [next(numbers) for _ in members]
            explained += [
                _handle(p.series.family, f"{label}  {p.series.label}", 0 if p in best else 1)
                for label, p in zip(labels, members, strict=True)
            ]
        named.append([(p.ratio, p.score, label) for p, label in zip(members, labels, strict=True)])
    line = Line2D(
        [], [], color="#888888", linewidth=0.9, label="Pareto front, filled (means over seeds)"
    )
    every_note = [
        *notes,
        *(note for title in shown for note in workloads[title].notes),
        *_single(points, shown),
    ]
    handles = [line, *(families[name] for name in sorted(families)), *explained]
    finish(figure, handles, list(dict.fromkeys(every_note)))
    place_labels(
        axes,
        named,
        [
            [_steps(best), *_spreads(members)]
            for best, members in zip(fronts, shown.values(), strict=True)
        ],
    )
    return figure


def _handle(family: str, label: str, nth: int = 0) -> Line2D:
    """Return a point's entry in the legend."""
    return Line2D([], [], label=label, **{**look(family, nth), "linestyle": ""})


def _panel(ax: Axes, points: Sequence[Point], best: Sequence[Point], y: str) -> None:
    for p in points:
        style = {**look(p.series.family, 0 if p in best else 1), "linestyle": ""}
        error = [[p.score - p.low], [p.high - p.score]] if p.high > p.low else None
        ax.errorbar(p.ratio, p.score, yerr=error, **style, capsize=2, elinewidth=0.8)
    ax.plot(*zip(*_steps(best), strict=True), color="#888888", linewidth=0.9, zorder=1)
    logarithmic(ax, "x")
    ax.margins(x=0.2, y=0.2)
    ax.set(xlabel=LABELS["ratio"], ylabel=label_of(y, [p.series for p in points]))
    if y in LOWER:
        ax.invert_yaxis()
        ax.set_ylabel(f"{ax.get_ylabel()}, downwards")


def _steps(best: Sequence[Point]) -> list[tuple[float, float]]:
    return [(p.ratio, p.score) for p in best]


def _spreads(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    return [[(p.ratio, p.low), (p.ratio, p.high)] for p in points if p.high > p.low]


def _short(point: Point, points: Sequence[Point]) -> str:
    """Return what tells a point from others of its family, which the legend names."""
    label = point.series.label
    if not _has_several(point, points):
        return label
    return label.removeprefix(point.series.family).strip(" :") or point.series.family


def _has_several(point: Point, points: Sequence[Point]) -> bool:
    return sum(p.series.family == point.series.family for p in points) > 1


def _single(points: dict[str, list[Point]], shown: dict[str, list[Point]]) -> list[str]:
    alone = [title for title in points if title not in shown]
    return [f"Without a second method, and not drawn: {'; '.join(alone)}."] if alone else []
