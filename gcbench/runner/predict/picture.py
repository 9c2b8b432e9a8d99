"""A picture of where methods pay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.lines import Line2D

from gcbench.runner.drawing import RC, finish, logarithmic, panels, save, style_of_method
from gcbench.runner.predict.model import SLOWEST, Cluster, MethodVerdict, Prediction

REFERENCE: dict[str, Any] = {"color": "#999999", "linewidth": 0.8, "linestyle": ":"}


@matplotlib.rc_context(RC)
def draw(
    verdicts: Sequence[MethodVerdict],
    dense: Sequence[Prediction],
    network: str,
    cluster: Cluster,
    path: Path,
    title: str,
) -> list[Path]:
    """Draw two panels over the number of workers as svg and png, and return the files.

    Left: the rate between nodes below which a method pays. Right: its step time on `network`,
    relative to that of a step without exchange or codec.
    """
    figure, (left, right) = panels(["Pays below this rate", "Step over the no-exchange bound"])
    families = [verdict.method.family for verdict in verdicts]
    styles = [
        style_of_method(family, families[:i].count(family)) for i, family in enumerate(families)
    ]
    for verdict, style in zip(verdicts, styles, strict=True):
        steps = verdict.predictions[network]
        workers = [p.workers for p in steps]
        left.plot(workers, [_rate(verdict, i) for i in range(len(workers))], **style)
        right.plot(workers, [p.of_bound for p in steps], **style)
    right.plot([p.workers for p in dense], [p.of_bound for p in dense], **style_of_method("none"))
    left.axhline(cluster.between.bits_per_second / 1e9, **REFERENCE)
    right.axhline(1.0, **REFERENCE)
    for ax, label in ((left, "Rate between nodes (Gbit/s)"), (right, "Step / bound (x)")):
        ax.set(xlabel="Workers", ylabel=label)
        logarithmic(ax, "x", "y")
    legend = [Line2D([], [], label="no compression", **style_of_method("none"))]
    legend += [
        Line2D([], [], label=verdict.method.title, **style)
        for verdict, style in zip(verdicts, styles, strict=True)
    ]
    legend.append(Line2D([], [], label="the network, and the bound", **REFERENCE))
    notes = [
        f"Predicted: {title}.",
        "A line at the top or bottom of the left panel: pays at all rates that were tried, or at "
        "none.",
        "A method that pays above a rate only is not drawn there.",
    ]
    return save(finish(figure, legend, notes), path)


def _rate(verdict: MethodVerdict, i: int) -> float:
    """Return the Gbit/s below which a method pays; NaN if it only pays above a rate."""
    low, high = next(iter(verdict.paying[i]), (SLOWEST, SLOWEST))
    return high / 1e9 if low == SLOWEST else float("nan")
