"""The figure of the bits and the error of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gcbench.drawing import finish, logarithmic, panels, style_of_method
from gcbench.report.study import Study


def draw_layers(study: Study) -> Figure | None:
    """Draw bits and error over the tensors from input to output, one line per method.

    A tensor that is sent without error has no point. Return None if the study has no rows.
    """
    by_method: dict[str, list[Mapping[str, Any]]] = {
        row["row"]: row["layers"] for row in study["rows"]
    }
    if not by_method:
        return None
    figure, axes = panels([""] * 2, wide=True)
    names = [layer["name"] for layer in next(iter(by_method.values()))]
    for nth, (method, lines) in enumerate(by_method.items()):
        style = style_of_method(method.split()[0], nth)
        axes[0].plot(
            [layer["bits_a_step"] / layer["values"] for layer in lines], **style, label=method
        )
        axes[1].plot(
            [layer["relative"] if layer["relative"] > 1e-6 else np.nan for layer in lines],
            **style,
            label=method,
        )
    for ax, label in zip(axes, ("Sent (bits per value)", "Relative error, 2-norm"), strict=True):
        ax.set(ylabel=label, xlim=(-0.5, len(names) - 0.5))
        logarithmic(ax, "y")
    axes[0].set_xticks(range(len(names)), [])
    axes[1].set_xticks(range(len(names)), names, rotation=90, fontsize=5 if len(names) > 40 else 7)
    axes[1].set_xlabel("Tensor")
    settings = study["settings"]
    where = settings.get("recorded") or f"{settings['model']} on {settings['dataset']}"
    return finish(figure, axes[1].get_legend_handles_labels()[0], [f"Gradients of {where}."])
