"""The score against a method's cost: its compression ratio, or its exchange time on a link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, product
from math import cos, dist, pi, sin
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from gcbench.runner.drawing import finish, logarithmic, panels, style_of_method
from gcbench.runner.records.metrics import MAIN_SCORES
from gcbench.runner.report.figures.series import LABELS, Drawn, Series, label_of
from gcbench.runner.report.measures import LOWER

# From this many points on, a panel is higher, and a table's numbers its rows for the legend.
CROWDED = 20


class Point(NamedTuple):
    series: Series
    x: float  # the cost; like the score, a mean over seeds
    score: float
    low: float  # the lowest and the highest score over seeds
    high: float


class Panel(NamedTuple):
    """Methods to compare, and the measure of their cost."""

    drawn: Drawn
    x: str = "ratio"
    settings: Mapping[str, Any] = {}

    @property
    def score(self) -> str | None:
        return score_of(self.drawn.series)

    def points(self) -> list[Point]:
        """Return a point for each series that has both a score and a cost, cheapest first."""
        if self.score is None:
            return []
        values = [
            (s, s.values(self.x, **self.settings), s.values(self.score)) for s in self.drawn.series
        ]
        points = [
            Point(s, float(np.mean(costs)), float(np.mean(scores)), min(scores), max(scores))
            for s, costs, scores in values
            if costs and scores
        ]
        return sorted(points, key=lambda point: (point.x, point.series.label))


def score_of(series: Sequence[Series]) -> str | None:
    return next((name for name in MAIN_SCORES if any(s.values(name) for s in series)), None)


def front(points: Sequence[Point], y: str, x: str = "ratio") -> list[Point]:
    """Return the Pareto front in the order of `points`: those that no other point dominates.

    A high ratio is better; any other cost is better if it is low.
    """
    x_sign, y_sign = 1 if x == "ratio" else -1, -1 if y in LOWER else 1
    return [p for p in points if not any(_beats(q, p, x_sign, y_sign) for q in points)]


def _beats(q: Point, p: Point, x_sign: int, y_sign: int) -> bool:
    a, b = (x_sign * q.x, y_sign * q.score), (x_sign * p.x, y_sign * p.score)
    return a[0] >= b[0] and a[1] >= b[1] and a != b


def draw_accuracy_ratio(workloads: Mapping[str, Drawn], notes: Sequence[str] = ()) -> Figure | None:
    """Draw the score over the compression ratio, one panel per workload."""
    return draw_tradeoff({title: Panel(drawn) for title, drawn in workloads.items()}, notes)


def draw_tradeoff(asked: Mapping[str, Panel], notes: Sequence[str] = ()) -> Figure | None:
    """Draw the panels, each with its Pareto front as a line.

    Where points are numbered, a series has the same number in all panels. Panels whose points all
    have the same cost are left out; return None if no others remain.
    """
    points = {title: panel.points() for title, panel in asked.items()}
    shown = {title: members for title, members in points.items() if len({p.x for p in members}) > 1}
    if not shown:
        return None
    is_crowded = any(len(members) >= CROWDED for members in shown.values())
    of_table = any(p.series.title for members in shown.values() for p in members)
    figure, axes = panels(list(shown), 3.6 if is_crowded else 2.6, wide=len(shown) == 1)
    fronts = {
        title: front(members, str(asked[title].score), asked[title].x)
        for title, members in shown.items()
    }
    best = {p.series for members in fronts.values() for p in members}
    numbers: dict[Series, str] = {}
    named: list[list[tuple[float, float, str]]] = []
    families: dict[str, Line2D] = {}
    for ax, (title, members) in zip(axes, shown.items(), strict=True):
        _panel(ax, members, fronts[title], asked[title])
        if len(members) < CROWDED or not of_table:
            sizes = Counter(p.series.family for p in members)
            # The label of a family's only point already names the family.
            several = {family for family, size in sizes.items() if size > 1}
            families |= {family: _handle(family, family) for family in several}
            labels = [_label(p.series, several) for p in members]
        else:
            labels = [numbers.setdefault(p.series, str(len(numbers) + 1)) for p in members]
        named.append([(p.x, p.score, label) for p, label in zip(members, labels, strict=True)])
    line = Line2D(
        [], [], color="#888888", linewidth=0.9, label="Pareto front, filled (means over seeds)"
    )
    explained = [
        _handle(s.family, f"{number}  {s.label}", s in best) for s, number in numbers.items()
    ]
    every_note = [
        *notes,
        *(note for title in shown for note in asked[title].drawn.notes),
        *_single(points, shown),
    ]
    handles = [line, *(families[name] for name in sorted(families)), *explained]
    titles = dict.fromkeys(asked[title].drawn.title for title in shown)
    finish(figure, handles, list(dict.fromkeys(every_note)), "; ".join(filter(None, titles)))
    place_labels(
        axes,
        named,
        [[_steps(fronts[title]), *_spreads(members)] for title, members in shown.items()],
    )
    return figure


def _handle(family: str, label: str, filled: bool = True) -> Line2D:
    """Return a point's entry in the legend."""
    return Line2D([], [], label=label, **_mark(family, filled))


def _mark(family: str, filled: bool) -> dict[str, Any]:
    return {**style_of_method(family, 0 if filled else 1), "linestyle": ""}


def _panel(ax: Axes, points: Sequence[Point], best: Sequence[Point], panel: Panel) -> None:
    for p in points:
        mark = _mark(p.series.family, p in best)
        error = [[p.score - p.low], [p.high - p.score]] if p.high > p.low else None
        ax.errorbar(p.x, p.score, yerr=error, **mark, capsize=2, elinewidth=0.8)
    ax.plot(*zip(*_steps(best), strict=True), color="#888888", linewidth=0.9, zorder=1)
    logarithmic(ax, "x")
    ax.margins(x=0.2, y=0.2)
    y = str(panel.score)
    ax.set(xlabel=LABELS[panel.x], ylabel=label_of(y, [p.series for p in points]))
    if y in LOWER:
        ax.invert_yaxis()
        ax.set_ylabel(f"{ax.get_ylabel()}, downwards")


def _steps(best: Sequence[Point]) -> list[tuple[float, float]]:
    return [(p.x, p.score) for p in best]


def _spreads(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    return [[(p.x, p.low), (p.x, p.high)] for p in points if p.high > p.low]


def _label(series: Series, named: Collection[str]) -> str:
    """Return a point's label, without its family if that is one of those `named` in the legend."""
    if series.family not in named:
        return series.label
    return series.label.removeprefix(series.family).strip(" :") or series.family


def _single(points: Mapping[str, list[Point]], shown: Mapping[str, list[Point]]) -> list[str]:
    alone = [title for title in points if title not in shown]
    return [f"Without a second method, and not drawn: {'; '.join(alone)}."] if alone else []


Line = Sequence[tuple[float, float]]  # the corners of a polyline
REACHES = (9, 14, 20, 28, 39, 52)  # distances to try between a marker and its name, in points
ANGLES = [pi * k / 8 for k in (0, 8, 4, 12, 2, 6, 14, 10, 1, 7, 15, 9, 3, 5, 13, 11)]
SIZE = 7


def place_labels(
    axes: Sequence[Axes],
    points: Sequence[Sequence[tuple[float, float, str]]],
    lines: Sequence[Sequence[Line]],
) -> None:
    """Write the names into every panel, clear of its points and of its `lines`.

    For each panel, `points` has a list of (x, y, name) and `lines` a list of polylines, both in
    data coordinates. Call it once the panels have their final sizes.
    """
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for ax, named, drawn in zip(axes, points, lines, strict=True):
        _place(ax, named, drawn, canvas.get_renderer())


def _place(
    ax: Axes, named: Sequence[tuple[float, float, str]], lines: Sequence[Line], renderer: Any
) -> None:
    scale = renderer.dpi / 72
    at = ax.transData.transform([(x, y) for x, y, _ in named])
    marks = [(x, y, 3 * scale) for x, y in at]
    marks += [(x, y, scale) for line in lines for x, y in _along(ax, line)]
    taken = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y, half in marks]
    for (x, y, name), center in zip(named, at, strict=True):
        note = ax.annotate(
            name,
            (x, y),
            (0, 0),
            textcoords="offset points",
            fontsize=SIZE,
            ha="center",
            va="center",
            # Leader lines of other names that cross this one run behind it.
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5},
        )
        note.set_in_layout(False)
        box = note.get_window_extent(renderer)
        dx, dy = _best(box, taken, ax.bbox, scale)
        note.set_position((dx / scale, dy / scale))
        moved = box.translated(dx, dy)
        taken.append(moved)
        nearest = _nearest(moved, center)
        if dist(nearest, center) > 9 * scale:
            _leader(ax, (x, y), nearest)


def _best(box: Bbox, taken: Sequence[Bbox], frame: Bbox, scale: float) -> tuple[float, float]:
    """Return the nearest free offset in pixels, or the one that covers least if none is free."""
    costs = []
    others = np.array([other.extents for other in taken])
    for reach, angle in product(REACHES, ANGLES):
        dx = cos(angle) * (reach * scale + box.width / 2 - 3 * scale)
        dy = sin(angle) * (reach * scale + box.height / 2 - 3 * scale)
        moved = box.translated(dx, dy)
        outside = moved.width * moved.height - _overlap(moved, np.array([frame.extents]))
        costs.append((_overlap(moved, others) + 10 * outside, dx, dy))
        if costs[-1][0] <= 0:
            break
    _, dx, dy = min(costs, key=lambda cost: cost[0])
    return dx, dy


def _overlap(box: Bbox, others: np.ndarray) -> float:
    """Return the total overlap of a box with `others`, `[n, 4]` as x0, y0, x1 and y1."""
    x0, y0, x1, y1 = others.T
    width = np.minimum(box.x1, x1) - np.maximum(box.x0, x0)
    height = np.minimum(box.y1, y1) - np.maximum(box.y0, y0)
    return float((width.clip(0) * height.clip(0)).sum())


def _along(ax: Axes, line: Line) -> list[tuple[float, float]]:
    at: Any = ax.transData.transform(line) if len(line) else []
    return [
        (x0 + (x1 - x0) * t / 20, y0 + (y1 - y0) * t / 20)
        for (x0, y0), (x1, y1) in pairwise(at)
        for t in range(21)
    ]


def _nearest(box: Bbox, center: Any) -> tuple[float, float]:
    return min(max(center[0], box.x0), box.x1), min(max(center[1], box.y0), box.y1)


def _leader(ax: Axes, point: tuple[float, float], end: tuple[float, float]) -> None:
    x, y = ax.transData.inverted().transform(end)
    ax.plot(
        [point[0], x],
        [point[1], y],
        color="#888888",
        linewidth=0.5,
        zorder=1,
        scalex=False,
        scaley=False,
    )
