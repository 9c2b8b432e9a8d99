"""The figure of the study error_by_bits."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcbench.papers.tables.measured import StudyResult
from gcbench.runner.drawing import finish, logarithmic, panels, style_of_method


def draw_error_by_bits(study: StudyResult) -> Figure | None:
    """Draw vNMSE over bits per value, one panel per law, with a line for each method."""
    rows = study["rows"]
    laws, lines = (list(dict.fromkeys(row[key] for row in rows)) for key in ("law", "line"))
    figure, axes = panels(laws, 1.75, columns=2)
    styles = {
        line: style_of_method(line.split()[0], sum(x.split()[0] == line.split()[0] for x in before))
        for i, line in enumerate(lines)
        for before in [lines[:i]]
    }
    for ax, law in zip(axes, laws, strict=True):
        for line in lines:
            points = [row for row in rows if row["law"] == law and row["line"] == line]
            ax.plot(
                [row["bits_per_value"] for row in points],
                [row["vnmse"] for row in points],
                **styles[line],
            )
        ax.set(xlabel="Bits per value", ylabel="vNMSE, |Q(v) - v|² / |v|²")
        logarithmic(ax, "y")
    return finish(figure, [Line2D([], [], label=line, **styles[line]) for line in lines])
