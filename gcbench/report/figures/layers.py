"""Bits and error of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gcbench.report.figures.axes import LABELS
from gcbench.report.figures.series import Drawn, Series
from gcbench.report.figures.style import finish, logarithmic, look, panels

Layer = dict[str, Any]
"""`name`, `values`, `bits_a_step` that a worker sent for it and `relative` error: result.json has `layers`, a list of these in
the model's order, means over the samples; `bits_a_step` is null where one message holds several layers."""
COLUMNS = {"bits": "Sent (bits a value)", "error": LABELS["relative_error"]}


def layers(drawn: Drawn) -> Figure | None:
    """Two panels, a line a row, the layers from the input on; of the first seed."""
    found = {s: s.runs[0].result.get("layers") for s in drawn.series}
    shown: dict[Series, list[Layer]] = {s: lines for s, lines in found.items() if lines}
    if not shown:
        return None
    figure, axes = panels([""] * 2, wide=True)
    names = [layer["name"] for layer in next(iter(shown.values()))]
    for ax, (what, label) in zip(axes, COLUMNS.items(), strict=True):
        for series, lines in shown.items():
            if any(values := _column(lines, what)):
                ax.plot(range(len(values)), values, **look(series.family, series.nth), label=series.label)
        ax.set(ylabel=label, xlim=(-0.5, len(names) - 0.5))
        logarithmic(ax, "y")
    for ax in axes[:-1]:
        ax.set_xticks(range(len(names)), [])
    axes[-1].set_xticks(range(len(names)), names, rotation=90)
    axes[-1].set_xlabel("Tensor")
    without = [s.label for s in drawn.series if s not in shown]
    notes = [f"Without layers in result.json: {', '.join(without)}."] if without else []
    return finish(figure, axes[-1].get_legend_handles_labels()[0], [*drawn.notes, *notes])


def _column(lines: Sequence[Layer], what: str) -> list[float]:
    """NaN where a layer has no such number, or zero, which a logarithmic axis cannot show."""
    if what == "error":
        return [layer["relative"] or np.nan for layer in lines]
    return [(layer.get("bits_a_step") or np.nan) / layer["values"] for layer in lines]
