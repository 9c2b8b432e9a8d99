"""The map of a table of times to a score: which method gets there first, by link and workers.

It is drawn, and is beside the picture as JSON, from which a page draws it for any computation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from gcbench.papers.ladder.ladder_fit import fits_of
from gcbench.papers.reach.reach import RATES, WORKERS, Contender, Race, race_of
from gcbench.papers.tables.rows import group_runs
from gcbench.papers.tables.tables import Table, read_table, table_names
from gcbench.runner.config.budget import PAPER
from gcbench.runner.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    finish,
    panels,
)
from gcbench.runner.network import Link
from gcbench.runner.predict.devices import PAYLOAD, format_rate, format_seconds, read_link
from gcbench.runner.predict.model import Cluster, Method, predict
from gcbench.runner.predict.recorded import INSTANT
from gcbench.runner.predict.target import LAST, First
from gcbench.runner.records.files import read_json
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.figures.curves import track

PALETTE = (PURPLE, GREEN, VERMILLION, BLUE, ORANGE, SKY, BLACK)  # and gray: eight in all
TIED, TIED_LABEL = "#dcdcdc", "seeds overlap"
LABELED, NARROWEST = (8, 32, 128), 3  # workers of the rows for names, which need so many cells
PLAIN, STRONG = 0.35, 1.3  # share of the color at a margin of 1, and the margin of the full color
CELLS = dict[float, list[list[First | None]]]  # by target, number of workers and rate


def draw_firsts(race: Race, cells: CELLS, measured: Iterable[tuple[str, int]]) -> Figure:
    """Draw one panel per target, over the rate and the number of workers.

    `measured` are (link, hosts) on which steps were measured.
    """
    won = Counter(c.label for rows in cells.values() for row in rows for c in row if c and c.sure)
    colors = dict(zip((label for label, _ in won.most_common()), PALETTE, strict=False))
    score = race.score.capitalize()
    figure, axes = panels([f"{score} {target:g}" for target in cells], 2.5, columns=3)
    dots = {
        (log10(read_link("network", link).bits_per_second / PAYLOAD), w) for link, w in measured
    }
    for ax, (target, rows) in zip(axes, cells.items(), strict=True):
        _panel(ax, rows, colors, dots)
        for network in race.settings.networks:
            link = read_link("network", network)
            for workers in race.settings.workers:
                first = race.first(target, workers, link)
                if first and first.sure:
                    at = log10(link.bits_per_second / PAYLOAD), WORKERS.index(workers)
                    ax.text(*at, f"{first.margin:.2f}\n", fontsize=5, ha="center", va="center")
        ax.set_ylabel("Workers" if ax is axes[0] else "")
    runs = race.contenders[0].runs[0].result
    return finish(
        figure,
        (),
        [
            f"{runs.choices['model']} on {runs.choices['dataset']}, a step of "
            f"{format_seconds(race.settings.compute_seconds)} and one worker per host: the method "
            "that reaches the score first, each with its best exchange, whole gradients with "
            "overlap, too. Numbers say how many times longer the next method takes; the darker, "
            "the longer. Gray: the slowest seed of the first is behind the fastest of another. "
            "Dots: links on which predicted steps were measured.",
        ],
    )


def _panel(
    ax: Axes,
    rows: Sequence[Sequence[First | None]],
    colors: Mapping[str, str],
    dots: Iterable[tuple[float, int]],
) -> None:
    image = np.array([[_color(cell, colors) for cell in row] for row in rows])
    x = np.log10(RATES)
    half = (x[1] - x[0]) / 2
    extent = (x[0] - half, x[-1] + half, -0.5, len(WORKERS) - 0.5)
    ax.imshow(image, origin="lower", aspect="auto", extent=extent, interpolation="nearest")
    ax.grid(visible=False)
    for name, (i, j, width) in _widest(rows).items():
        text = tied_label(rows) if name == TIED_LABEL else name.split(",")[0]
        size = 7 if width > len(x) / 4 else 5
        ax.text(
            x[0] + 2 * half * i, j, text, fontsize=size, weight="bold", ha="center", va="center"
        )
    inside = [(rate, WORKERS.index(w)) for rate, w in dots if rate >= extent[0] and w in WORKERS]
    if inside:
        ax.plot(*zip(*inside, strict=True), "o", color="white", markeredgecolor="black", ms=3)
    ax.set_xticks(
        [8, 9, 10, 11], [format_rate(10.0**power).replace("bit/s", "") for power in (8, 9, 10, 11)]
    )
    ax.set_yticks(range(len(WORKERS)), [str(workers) for workers in WORKERS])
    ax.set_xlabel("Link (bit/s)")


def _widest(rows: Sequence[Sequence[First | None]]) -> dict[str, tuple[float, int, int]]:
    """Return the middle of the widest stretch of each name, its row, and its width in cells.

    Rows with margins are avoided where another has the name, too.
    """
    best: dict[str, tuple[bool, int]] = {}
    places: dict[str, tuple[float, int, int]] = {}
    for j, row in enumerate(rows):
        names = [cell.label if cell and cell.sure else TIED_LABEL for cell in row]
        at = 0
        for name, stretch in groupby(names):
            width = len(list(stretch))
            # Several lines have no room at the top.
            rank = WORKERS[j] in LABELED and (name != TIED_LABEL or row is not rows[-1]), width
            if width >= NARROWEST and rank > best.get(name, (False, 0)):
                best[name], places[name] = rank, (at + (width - 1) / 2, j, width)
            at += width
    return places


def tied_label(rows: Sequence[Sequence[First | None]]) -> str:
    """Return the names that are first or next most often where the seeds of two overlap."""
    tied = (cell for row in rows for cell in row if cell and not cell.sure)
    names = Counter(name for cell in tied for name in (cell.label, cell.next_label))
    kinds = dict.fromkeys(name.split(",")[0] for name, _ in names.most_common())
    return "\n".join([TIED_LABEL, *list(kinds)[:3]])


def _color(cell: First | None, colors: Mapping[str, str]) -> tuple[float, ...]:
    """Return the color of a cell, the paler the smaller its margin; gray where seeds overlap."""
    if cell is None or not cell.sure or cell.label not in colors:
        return to_rgb(TIED)
    share = PLAIN + (1 - PLAIN) * min(1.0, (cell.margin - 1) / (STRONG - 1))
    return tuple(1 - share * (1 - part) for part in to_rgb(colors[cell.label]))


def measured_links(folders: Sequence[str]) -> set[tuple[str, int]]:
    """Return the links and numbers of hosts of the tables in links/ below these folders."""
    found = set()
    for folder in folders:
        for path in Path(folder).rglob("links/*.json"):
            content = read_json(path)
            parts = content.get("parts", [content])
            found |= {(p["link"], p["hosts"]) for p in parts if {"link", "hosts"} <= p.keys()}
    return {(link, hosts) for link, hosts in found if link != "open"}


def as_json(race: Race, cells: Mapping[float, list[list[First | None]]]) -> dict[str, Any]:
    """Return the map by target, number of workers and rate, and all that it is made of.

    A cell has who is first, the next one's time over its own, the next one, and whether that is
    beyond what seeds differ.
    """
    maps = {
        f"{target:g}": [[c and c._replace(margin=_round(c.margin)) for c in row] for row in rows]
        for target, rows in cells.items()
    }
    return {**_profile(race), "rates": [*map(_round, RATES)], "maps": maps}


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def races_of(runs: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield what a page needs to draw the maps of all tables with such runs."""
    tables = [*map(read_table, table_names())]
    slopes = dict(slope for table in tables for slope in _slopes(table, runs))
    for table in tables:
        groups = {
            b: group_runs(table, runs, b) for b in (table.reach.targets if table.reach else ())
        }
        for budget, rows in groups.items():
            race = race_of(table, rows, [same for same in groups.values() if same is not rows])
            if race and race.targets:
                shown = _profile(race, slopes)
                yield {"table": table.name, "budget": budget, **shown}


def _slopes(table: Table, runs: Sequence[RecordedRun]) -> Iterator[tuple[str, float]]:
    """Yield titles of a ladder, and what a method's loss gains with ten times the parameters."""
    fits = table.ladder and fits_of(table.ladder, group_runs(table, runs, PAPER))
    for title, one in fits.fits.methods.items() if fits else ():
        if (more := one.nats_per_decade) is not None:
            yield title, more


def _profile(race: Race, slopes: Mapping[str, float] | None = None) -> dict[str, Any]:
    return {
        "score": race.score,
        "targets": race.targets,
        "made_for": [_scores_made_for(runs, race.score) for runs in race.contenders[0].lengths],
        "parameters": race.contenders[0].runs[0].result.parameters,
        "compute_seconds": race.settings.compute_seconds,
        "backward_share": race.device.backward_share,
        "workers": WORKERS,
        "methods": [
            {**_method(race, one), "per_decade": (slopes or {}).get(one.label)}
            for one in (*race.contenders, *race.overlapped)
        ],
    }


def _scores_made_for(runs: Sequence[RecordedRun], score: str) -> tuple[float, float]:
    """Return the scores through which dense runs go in the last 15 % of their schedule."""
    curves = [t for run in runs if (t := track(run, score, "step"))]
    late = [float(np.interp((1 - LAST) * t.step[-1], t.step, t.y)) for t in curves]
    return _round(min(late)), _round(max(float(t.y[-1]) for t in curves))


def _method(race: Race, one: Contender) -> dict[str, Any]:
    """Return curves over steps, by length, and by exchange and workers what a step costs."""
    lengths = [[track(run, race.score, "step") for run in runs] for runs in one.lengths]
    return {
        "label": one.label,
        "dense": one.own.family == "none" and one.own.every == 1 and not one.overlap[0],
        "buckets": math.ceil(one.own.dense_bytes / one.overlap[1]) if one.overlap[0] else 1,
        "curves": [
            [[[*map(float, t.step)], [*map(_round, t.y)]] for t in tracks if t]
            for tracks in lengths
        ],
        "costs": {
            exchange: {w: [_round(c) for c in _costs(method, w, race)] for w in WORKERS}
            for exchange, method in one.forms.items()
        },
        "power": _round(_power(one, race)),
    }


def _power(one: Contender, race: Race) -> float:
    """Return the power of the parameters with which messages grow, up to 32 times the width."""
    if one.wide is None:
        return 1.0
    bits, wide_bits = (_costs(method, min(WORKERS), race)[1] for method in (one.own, one.wide))
    return math.log(wide_bits / bits) / math.log(one.wide.dense_bytes / one.own.dense_bytes)


def _costs(method: Method, workers: int, race: Race) -> tuple[float, float, float]:
    """Return how many latencies and bits a step waits for, and the seconds of its coding."""
    by_latency, by_bits = (
        predict(method, workers, Cluster(link, INSTANT), race.compute)
        for link in (Link(math.inf, 1), Link(1))
    )
    return by_latency.exchange_seconds, by_bits.exchange_seconds, by_latency.codec_seconds
