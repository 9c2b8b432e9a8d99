"""Names next to points, placed so that they do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import cos, dist, pi, sin
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

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
