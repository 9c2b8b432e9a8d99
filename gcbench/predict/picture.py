"""From where on methods pay, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcbench.predict.model import Cluster, Prediction
from gcbench.predict.pays import FASTEST, SLOWEST, Answer
from gcbench.report.figures.style import RC, finish, logarithmic, look, panels, save


@matplotlib.rc_context(RC)
def draw(
    answers: Sequence[Answer], dense: Sequence[Prediction], cluster: Cluster, path: Path, title: str
) -> list[Path]:
    """Left: the rate between nodes below which a method pays, over the workers. Right: its step over that without exchange, on
    the network that was asked for."""
    return save(pays(answers, dense, cluster, title), path)


def pays(
    answers: Sequence[Answer], dense: Sequence[Prediction], cluster: Cluster, title: str
) -> Figure:
    figure, (left, right) = panels(["Pays below this rate", "Step over the no-exchange bound"])
    looks = [look(a.method.family, _nth(a, answers)) for a in answers]
    for answer, style in zip(answers, looks, strict=True):
        workers = [p.workers for p in answer.predictions]
        left.plot(workers, [_rate(answer, i) for i in range(len(workers))], **style)
        right.plot(workers, [p.of_bound for p in answer.predictions], **style)
    right.plot([p.workers for p in dense], [p.of_bound for p in dense], **look("none"))
    left.axhline(
        cluster.between.bits_per_second / 1e9, color="#999999", linewidth=0.8, linestyle=":"
    )
    right.axhline(1.0, color="#999999", linewidth=0.8, linestyle=":")
    for ax, label in ((left, "Rate between nodes (Gbit/s)"), (right, "Step / bound (x)")):
        _axes(ax, label)
    handles = [
        Line2D([], [], label=a.method.title, **style)
        for a, style in zip(answers, looks, strict=True)
    ]
    none = Line2D([], [], label="no compression", **look("none"))
    line = Line2D(
        [], [], color="#999999", linewidth=0.8, linestyle=":", label="the network, and the bound"
    )
    always = "A line at the top or bottom of the left panel: pays at all rates that were tried, or at none."
    return finish(
        figure,
        [none, *handles, line],
        [
            f"Predicted: {title}.",
            always,
            "A method that pays above a rate only is not drawn there.",
        ],
    )


def _axes(ax: Axes, label: str) -> None:
    ax.set(xlabel="Workers", ylabel=label)
    logarithmic(ax, "x", "y")


def _rate(answer: Answer, i: int) -> float:
    limit = answer.thresholds[i]
    if limit.above is not None:
        return float("nan")
    bits = SLOWEST if limit.never else limit.below or FASTEST
    return bits / 1e9


def _nth(answer: Answer, among: Sequence[Answer]) -> int:
    """Of its method's family."""
    return [a for a in among if a.method.family == answer.method.family].index(answer)
