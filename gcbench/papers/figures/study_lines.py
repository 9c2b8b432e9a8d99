"""Figures of studies with one line per method over the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from gcbench.papers.tables.measured import StudyResult
from gcbench.runner.drawing import LINES, finish, logarithmic, panels, style_of_line, tick_counts
from gcbench.runner.records.schema import BITS_PER_MIB

StudyRow = Mapping[str, Any]


def distinct(rows: Sequence[StudyRow], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def draw_decode_scaling(study: StudyResult) -> Figure | None:
    """Draw decoding time and received payload against the number of workers."""
    rows = study["rows"]
    figure, axes = panels(["", ""])
    for ax, key, scale, label in zip(
        axes,
        ("decode_milliseconds", "received_bits"),
        (1.0, 1 / BITS_PER_MIB),
        ("Decoding (ms)", "Received in a step (MiB)"),
        strict=True,
    ):
        for nth, method in enumerate(distinct(rows, "method")):
            members = [row for row in rows if row["method"] == method]
            ax.plot(
                [row["workers"] for row in members],
                [row[key] * scale for row in members],
                **style_of_line(nth),
                label=method,
            )
        counts = distinct(rows, "workers")
        ax.set(xlabel="Workers", ylabel=label)
        logarithmic(ax, "x", "y")
        tick_counts(ax, counts)
    return finish(figure, axes[0].get_legend_handles_labels()[0])


def draw_wire_error(study: StudyResult) -> Figure | None:
    """Draw vNMSE over the number of workers, 16-bit wires on the left and coded ones on the right.

    A method has a color; its lines differ in how it adds and rounds.
    """
    rows = study["rows"]
    if not rows:
        return None
    figure, axes = panels(["16 bits", "8 and 4 bits"], wide=True)
    families: dict[str, list[str]] = {}
    for method in distinct(rows, "method"):
        families.setdefault(method.split()[0], []).append(method)
    for color, (family, methods) in enumerate(families.items()):
        ax = axes[0 if family in ("bf16", "fp16") else 1]
        for method, dashes in zip(methods, LINES * len(methods), strict=False):
            members = [row for row in rows if row["method"] == method]
            counts, errors = ([row[key] for row in members] for key in ("workers", "vnmse"))
            style = {**style_of_line(color), "linestyle": dashes}
            ax.plot(counts, errors, **style, label=method)
    for ax in axes:
        ax.set(xlabel="Workers", ylabel="vNMSE of the mean")
        logarithmic(ax, "x", "y")
        tick_counts(ax, distinct(rows, "workers")[1::2])
    return finish(figure, [line for ax in axes for line in ax.get_legend_handles_labels()[0]])
