"""The style of all figures: widths of a paper's columns, and colors for the color-blind, too."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from math import log10
from pathlib import Path
from typing import Any
from zlib import crc32

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatter
from PIL import Image

COLUMN, PAGE = 3.4, 6.9  # widths in inches: one column of a paper, and both
PANEL_HEIGHT = 2.2
LEGEND_LINE = 0.15  # inches
TITLE_POINTS, TITLE_LINE, TITLE_LETTERS = 8, 0.16, 17  # as below
NOTE_POINTS, NOTE_LINE, NOTE_LETTERS = 7, 0.125, 19  # font size; inches per line; letters per inch
# The colors of Okabe and Ito, with gray in place of their yellow, which is hard to see in print.
BLACK = "#000000"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
ORANGE = "#E69F00"
GRAY = "#767676"
COLORS = (BLACK, BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE, GRAY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")
LINES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
)
# The color and marker of each method; methods of one paper differ in both.
FAMILIES = {
    "none": (BLACK, "o"),
    "fp16": (GRAY, "p"),
    "bf16": (SKY, "*"),
    "qsgd": (BLUE, "s"),
    "qsgd_by_kind": (SKY, "s"),
    "onebit": (PURPLE, "p"),
    "ecqsgd": (VERMILLION, "v"),
    "powersgd": (GREEN, "D"),
    "top_k": (SKY, "X"),
    "ef21": (GREEN, "X"),
    "ef21_muon": (GREEN, "<"),
    "natural": (ORANGE, "o"),
    "eden": (BLACK, "*"),
    "dgc": (VERMILLION, "o"),
    "loco": (VERMILLION, "D"),
    "sparseloco": (GRAY, "X"),
    "demo": (ORANGE, "v"),
    "onebit_adam": (BLUE, "P"),
    "dion": (SKY, "D"),
    "dion2": (SKY, "P"),
    "acpsgd": (PURPLE, "D"),
    "signum": (ORANGE, "P"),
    "sign_norm": (BLUE, "v"),
    "random_block": (VERMILLION, "<"),
    "random_k": (PURPLE, "s"),
    "atomo": (GRAY, "*"),
    "unbiased_lowrank": (BLUE, "p"),
    "orq": (PURPLE, "^"),
    "qsgd_levels": (BLUE, "D"),
    "linear": (VERMILLION, "X"),
    "terngrad": (GREEN, ">"),
    "scaled_sign": (SKY, "<"),
    "bingrad_b": (ORANGE, "s"),
    "bingrad_pb": (GRAY, "P"),
    "maxnorm": (BLUE, "^"),
    "maxnorm_multiscale": (VERMILLION, "P"),
    "global_randk": (PURPLE, ">"),
    "global_randk_multiscale": (ORANGE, "*"),
}
METADATA: dict[str, Any] = {
    ".svg": {"Date": None, "Creator": "gcbench"},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": "gcbench"},
}
KINDS = ("svg", "png", "pdf")  # for the web, for a look, for LaTeX
KEPT_KINDS = ("svg", "png")
RC: Any = {
    "pdf.fonttype": 42,  # fonts that conferences take
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures are identical everywhere
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "gcbench",  # makes the bytes of a figure reproducible
    "svg.fonttype": "path",
}


def style_of_method(family: str, nth: int = 0) -> dict[str, Any]:
    """Return the keyword arguments of `Axes.plot` for the `nth` row of a method.

    Color and marker follow from `family`, a choice of conf/compressor; line style and filling
    follow from `nth`.
    """
    index = crc32(family.encode())
    color, marker = FAMILIES.get(
        family, (COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)])
    )
    filling = {} if nth % 2 == 0 else {"markerfacecolor": "white"}
    return {"color": color, "marker": marker, "linestyle": LINES[nth % len(LINES)], **filling}


def style_of_line(nth: int) -> dict[str, Any]:
    """Return the keyword arguments of `Axes.plot` for the `nth` of lines that are not methods."""
    return {
        "color": COLORS[nth % len(COLORS)],
        "marker": MARKERS[nth % len(MARKERS)],
        "linestyle": LINES[nth % len(LINES)],
    }


def panels(
    titles: Sequence[str], height: float = PANEL_HEIGHT, *, columns: int = 2, wide: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, one for each title, each row `height` inches high.

    A single panel is as wide as a column of the paper, and a row of several is as wide as the page.
    If `wide`, each panel is as wide as the page.
    """
    columns = min(len(titles), 1 if wide else columns)
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(PAGE if columns > 1 or wide else COLUMN, rows * height))
    axes = [figure.add_subplot(rows, columns, i + 1, title=title) for i, title in enumerate(titles)]
    return figure, axes


class _Between(LogFormatter):
    """A formatter that labels ticks between powers of ten where there is room."""

    def __call__(self, value: float, position: int | None = None) -> str:
        return f"{value:g}" if super().__call__(value, position) else ""


def logarithmic(ax: Axes, *names: str) -> None:
    """Make the axes `x`, `y` or both logarithmic, with plain numbers as tick labels."""
    for name in names:
        getattr(ax, f"set_{name}scale")("log")
        axis = getattr(ax, f"{name}axis")
        axis.set_major_formatter(_power)
        axis.set_minor_formatter(_Between(minor_thresholds=(1, 0.4)))


def tick_counts(ax: Axes, counts: Sequence[int]) -> None:
    """Put ticks of the x axis at `counts` only, labeled with the numbers in full."""
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.set_xticks([], minor=True)


def _power(value: float, _: int) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e4 else f"$10^{{{log10(value):.0f}}}$"


def finish(
    figure: Figure,
    handles: Sequence[Artist] = (),
    notes: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Put a title above the panels, and a legend and notes below; the panels keep their size."""
    width, height = figure.get_size_inches()
    if title:
        heading = textwrap.fill(title, int(width * TITLE_LETTERS))
        figure.suptitle(heading, fontsize=TITLE_POINTS)
        height += TITLE_LINE * (1 + heading.count("\n"))
    lines = [
        line
        for note in notes
        for line in textwrap.wrap(note, int(width * NOTE_LETTERS), break_on_hyphens=False)
    ]
    below = NOTE_LINE * len(lines) + (0.05 if lines else 0)
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    columns = max(1, min(len(handles), int(width / (0.6 + 0.052 * longest))))
    legend = LEGEND_LINE * -(-len(handles) // columns) + 0.08 if handles else 0
    total = height + legend + below
    figure.set_size_inches(width, total)
    figure.set_layout_engine("constrained", rect=(0, (legend + below) / total, 1, height / total))
    if handles:
        figure.legend(
            handles=list(handles),
            loc="lower center",
            bbox_to_anchor=(0.5, below / total),
            ncols=columns,
            borderaxespad=0,
        )
    if lines:
        figure.text(
            0.01,
            0.04 / total,
            "\n".join(lines),
            fontsize=NOTE_POINTS,
            va="bottom",
            linespacing=1.15,
        )
    return figure


def part_ticks(figure: Figure) -> None:
    """Leave out labels of x axes, with their ticks, until none touches the next one."""
    figure.draw_without_rendering()
    for axis in (ax.xaxis for ax in figure.axes):
        low, high = sorted(axis.get_view_interval())
        labels = axis.get_ticklabels(which="both")
        shown = sorted(
            (label.get_window_extent().x0, label.get_window_extent().x1, label.get_position()[0])
            for label in labels
            if label.get_text() and low <= label.get_position()[0] <= high
        )
        touching = any(end + 2 > begin for (_, end, _), (begin, _, _) in pairwise(shown))
        if touching and not isinstance(axis.get_major_locator(), FixedLocator):
            places = [place for _, _, place in shown[:: len(shown) - 1 if len(shown) < 6 else 3]]
            axis.set_ticks(places, [f"{place:g}" for place in places])
            axis.set_ticks([], minor=True)


def name_files(files: Sequence[Path]) -> str:
    """Return the files of a picture in a few words: its first file, and the endings of the others.

    outputs/figures/first/curves.svg .png .pdf
    """
    return " ".join([str(files[0]), *(file.suffix for file in files[1:])])


def save(figure: Figure, path: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Write `path` as files of these kinds, reproducible byte for byte, and return their paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part_ticks(figure)
    files = [path.with_name(f"{path.name}.{kind}") for kind in kinds]
    for file in files:
        figure.savefig(file, metadata=METADATA[file.suffix])
        if file.suffix == ".png":
            with Image.open(file) as picture:  # a palette saves two thirds of the bytes
                small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
            small.save(file, optimize=True)
    return files
