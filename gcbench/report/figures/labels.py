"""Names at points, none over another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import cos, hypot, pi, sin
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

Line = Sequence[tuple[float, float]]  # its corners
REACHES = (9, 14, 20, 28, 39, 52)  # points between a marker and its name
ANGLES = [pi * k / 8 for k in (0, 8, 4, 12, 2, 6, 14, 10, 1, 7, 15, 9, 3, 5, 13, 11)]
SIZE = 7


def place_labels(
    axes: Sequence[Axes],
    points: Sequence[Sequence[tuple[float, float, str]]],
    lines: Sequence[Sequence[Line]],
) -> None:
    """Write (x, y, name) of every panel, away from its points and from `lines`.

    Call it when the panels have their sizes.
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
    taken = [_around(x, y, 3 * scale) for x, y in at] + [
        _around(x, y, scale) for line in lines for x, y in _along(ax, line)
    ]
    for (x, y, name), center in zip(named, at, strict=True):
        note = ax.annotate(
            name,
            (x, y),
            (0, 0),
            textcoords="offset points",
            fontsize=SIZE,
            ha="center",
            va="center",
            # Leaders of other names that cross this one run behind it.
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5},
        )
        note.set_in_layout(False)
        box = note.get_window_extent(renderer)
        dx, dy = _best(box, taken, ax.bbox, scale)
        note.set_position((dx / scale, dy / scale))
        taken.append(box.translated(dx, dy))
        if hypot(*_gap(box.translated(dx, dy), center)) > 9 * scale:
            _leader(ax, (x, y), _nearest(box.translated(dx, dy), center))


def _best(box: Bbox, taken: Sequence[Bbox], frame: Bbox, scale: float) -> tuple[float, float]:
    """Return the first offset that is free, near ones first; else the one that covers least."""
    costs = []
    for reach, angle in product(REACHES, ANGLES):
        dx = cos(angle) * (reach * scale + box.width / 2 - 3 * scale)
        dy = sin(angle) * (reach * scale + box.height / 2 - 3 * scale)
        moved = box.translated(dx, dy)
        outside = moved.width * moved.height - _overlap(moved, frame)
        costs.append((sum(_overlap(moved, other) for other in taken) + 10 * outside, dx, dy))
        if costs[-1][0] <= 0:
            break
    _, dx, dy = min(costs, key=lambda cost: cost[0])
    return dx, dy


def _overlap(a: Bbox, b: Bbox) -> float:
    both = Bbox.intersection(a, b)
    return both.width * both.height if both is not None else 0.0


def _around(x: float, y: float, half: float) -> Bbox:
    return Bbox.from_extents(x - half, y - half, x + half, y + half)


def _along(ax: Axes, line: Line) -> list[tuple[float, float]]:
    at: Any = ax.transData.transform(line) if len(line) else []
    return [
        (x0 + (x1 - x0) * t / 20, y0 + (y1 - y0) * t / 20)
        for (x0, y0), (x1, y1) in pairwise(at)
        for t in range(21)
    ]


def _nearest(box: Bbox, center: Any) -> tuple[float, float]:
    return min(max(center[0], box.x0), box.x1), min(max(center[1], box.y0), box.y1)


def _gap(box: Bbox, center: Any) -> tuple[float, float]:
    x, y = _nearest(box, center)
    return x - center[0], y - center[1]


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
