"""Figures of studies, from outputs/studies/<name>.json; each study explains its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gcbench.papers.figures.error_figure import draw_error_by_bits
from gcbench.papers.figures.study_lines import (
    StudyRow,
    distinct,
    draw_decode_scaling,
    draw_wire_error,
)
from gcbench.papers.tables.measured import StudyResult
from gcbench.papers.tables.tables import Table
from gcbench.runner.drawing import (
    BLUE,
    LINES,
    finish,
    logarithmic,
    panels,
    style_of_line,
    style_of_method,
    tick_counts,
)

# Lower ends of axes: flat vectors have a variance of 0 with some numbers of levels.
LEAST = {"variance": 1e-3}
FEW = 6  # the most lines whose legend fits into a column of a paper
SETTING = re.compile(r"[ -]\(?\d.*$")  # the number in a row's title such as QSGD-MN 8
SOLID: Any = "-"
DASHED: Any = (0, (3, 1.5))


def draw_histograms(study: StudyResult, titles: Sequence[str] = ()) -> Figure | None:
    """Draw histograms of quantized values over those of the gradients, one panel per quantizer.

    `titles` selects rows; by default all that have a histogram. Return None if there are none.
    """
    rows = {
        row["row"]: row
        for row in study["rows"]
        if row.get("histogram") and (not titles or row["row"] in titles)
    }
    if not rows:
        return None
    figure, axes = panels(list(rows), 1.55, columns=3)
    for ax, row in zip(axes, rows.values(), strict=True):
        x, share = _shares(row["histogram"])
        if "FP" in rows and row["row"] != "FP":
            ax.fill_between(
                *_shares(rows["FP"]["histogram"]),
                step="mid",
                color="#c8c8c8",
                linewidth=0,
                label="gradients",
            )
        ax.fill_between(x, share, step="mid", color=BLUE, linewidth=0, alpha=0.85)
        ax.set(xlabel="Value of the gradient", ylabel="Share (%)", xlim=(x[0], x[-1]))
        ax.xaxis.set_major_locator(MaxNLocator(3))
        logarithmic(ax, "y")
        ax.set_ylim(1e-3, 100)
        error = row.get("vnmse")
        if error:
            ax.set_title(f"{row['row']}, vNMSE {error:.2g}")
    handles = [
        Line2D([], [], color=color, linewidth=5, label=label)
        for color, label in (("#c8c8c8", "gradients"), (BLUE, "what is sent"))
    ]
    step, clip = next(iter(rows.values())).get("step"), study["settings"]["clip_sigma"]
    note = f"Step {step} of {_training(study)}, within {clip:g} deviations."
    return finish(figure, handles, [note, *_missing(titles, list(rows))])


def _training(study: StudyResult) -> str:
    """Return which training gave the study its gradients."""
    settings = study["settings"]
    return settings.get("recorded") or f"{settings['model']} on {settings['dataset']}"


def draw_histograms_of_table(table: Table, study: StudyResult) -> Figure | None:
    """Draw the histograms of a table's rows, and say which of them the study lacks."""
    return draw_histograms(study, [row.title for row in table.rows])


def _shares(histogram: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the centers of the bins, and the percentage of all values in each."""
    counts = np.array(histogram["counts"], dtype=float)
    edges = np.linspace(histogram["low"], histogram["high"], len(counts) + 1)
    total = counts.sum() + histogram["below"] + histogram["above"]
    return (edges[:-1] + edges[1:]) / 2, 100 * counts / total


MEASURED = {
    "variance": ("variance_bound", "Variance, |Q(v) - v|² / |v|²"),
    "nonzeros": ("nonzeros_bound", "Values that are not zero"),
    "sparse_code_bits": ("sparse_code_bound_bits", "Code length (bits)"),
}


def draw_quantizer_bounds(study: StudyResult) -> Figure | None:
    """Draw quantities and their bounds, with one row of panels each and one column per length."""
    rows = study["rows"]
    kinds, every = distinct(rows, "vector"), distinct(rows, "n")
    lengths = sorted({every[0], every[len(every) // 2], every[-1]})
    figure, axes = panels(
        [f"n = {n:,}" for _ in MEASURED for n in lengths], 1.7, columns=len(lengths)
    )
    for i, (quantity, (bound, label)) in enumerate(MEASURED.items()):
        for j, n in enumerate(lengths):
            ax = axes[i * len(lengths) + j]
            for k, kind in enumerate(kinds):
                members = [row for row in rows if row["n"] == n and row["vector"] == kind]
                ax.plot(
                    [row["s"] for row in members],
                    [row[quantity] for row in members],
                    **style_of_line(k + 1),
                )
            ax.plot(
                [row["s"] for row in members],
                [row[bound] for row in members],
                color="black",
                linewidth=1.4,
            )
            ax.set(xlabel="Levels s", ylabel=label if j == 0 else "")
            logarithmic(ax, "x", "y")
            ax.set_ylim(bottom=LEAST.get(quantity))
    lines = [
        Line2D([], [], label=f"measured, {kind}", **style_of_line(k + 1))
        for k, kind in enumerate(kinds)
    ]
    return finish(
        figure, [Line2D([], [], color="black", linewidth=1.4, label="bound of the theorem"), *lines]
    )


def draw_ecq_stability(study: StudyResult) -> Figure | None:
    """Draw the residual over steps for every alpha, with solid lines where lambda < 1."""
    rows = study["rows"]
    columns = len(distinct(rows, "d"))
    figure, axes = panels([row["row"] for row in rows], 1.75, columns=columns)
    alphas = sorted({alpha for row in rows for alpha in row["alphas"]})
    shades = {alpha: _shade(i / max(1, len(alphas) - 1)) for i, alpha in enumerate(alphas)}
    for i, (ax, row) in enumerate(zip(axes, rows, strict=True)):
        for alpha, contraction, residual in zip(
            row["alphas"], row["lambdas"], row["residual_by_alpha"], strict=True
        ):
            known = [
                (step, size) for step, size in zip(row["steps"], residual, strict=True) if size
            ]
            ax.plot(
                *zip(*known, strict=True),
                color=shades[alpha],
                linestyle=SOLID if contraction < 1 else DASHED,
            )
        logarithmic(ax, "x", "y")
        ax.set(ylim=(None, 1e4), xlabel="Step")
        ax.set_ylabel("Residual, root mean square" if i % columns == 0 else "")
    handles = [
        Line2D([], [], color=shade, label=f"α = {alpha:g}") for alpha, shade in shades.items()
    ]
    lines = [
        Line2D([], [], color="black", linestyle=SOLID, label="λ < 1"),
        Line2D([], [], color="black", linestyle=DASHED, label="λ ≥ 1"),
    ]
    return finish(figure, [*lines, *handles], ["The gradients have variance 1."])


def _shade(share: float) -> tuple[float, float, float]:
    """Return a color from light (0) to dark (1), which stay in order when printed in gray."""
    red, green, blue, _ = colormaps["viridis_r"](0.12 + 0.88 * share)
    return red, green, blue


def draw_layers(study: StudyResult) -> Figure | None:
    """Draw bits and error over the tensors from input to output, one line per method.

    A tensor that is sent without error has no point. Return None if the study has no rows.
    """
    by_method: dict[str, list[StudyRow]] = {row["row"]: row["layers"] for row in study["rows"]}
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
    notes = [f"Gradients of {_training(study)}."]
    return finish(figure, axes[1].get_legend_handles_labels()[0], notes)


def draw_predicted_throughput(table: Table, study: StudyResult) -> Figure | None:
    """Draw throughput over the number of GPUs, one line per row of the table.

    Rows of the same method share a color. A row of the study names its `table` and has two lists,
    `gpus` and `images_per_second_by_gpus`. Return None if the study has none of the table's rows.
    """
    known = {
        row["row"]: row
        for row in study["rows"]
        if row.get("table") == table.name and row.get("gpus")
    }
    titles = [row.title for row in table.rows]
    shown = [title for title in titles if title in known]
    if not shown:
        return None
    figure, (ax,) = panels([""], wide=len(shown) > FEW)
    methods = [SETTING.sub("", title) for title in shown]
    colors = list(dict.fromkeys(methods))
    for i, (title, method) in enumerate(zip(shown, methods, strict=True)):
        style = {
            **style_of_line(colors.index(method)),
            "linestyle": LINES[methods[:i].count(method) % len(LINES)],
        }
        ax.plot(
            known[title]["gpus"], known[title]["images_per_second_by_gpus"], **style, label=title
        )
    ax.set(xlabel="GPUs", ylabel="Predicted throughput (images/s)")
    logarithmic(ax, "x", "y")
    counts = sorted({count for title in shown for count in known[title]["gpus"]})
    tick_counts(ax, counts)
    return finish(figure, ax.get_legend_handles_labels()[0], _missing(titles, shown))


def _missing(titles: Sequence[str], shown: Sequence[str]) -> list[str]:
    missing = [title for title in titles if title not in shown]
    return [f"Missing: {', '.join(missing)}."] if missing else []


STUDIES: dict[str, Callable[[StudyResult], Figure | None]] = {
    "gradient_levels": draw_histograms,
    "quantizer_bounds": draw_quantizer_bounds,
    "ecq_stability": draw_ecq_stability,
    "error_by_bits": draw_error_by_bits,
    "layers": draw_layers,
    "decode_scaling": draw_decode_scaling,
    "wire_error": draw_wire_error,
}
# Studies whose figure shows the rows of a table.
TABLE_STUDIES: dict[str, Callable[[Table, StudyResult], Figure | None]] = {
    "gradient_levels": draw_histograms_of_table,
    "throughput_model": draw_predicted_throughput,
}
