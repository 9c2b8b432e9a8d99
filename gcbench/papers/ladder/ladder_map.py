"""The answer of a ladder: sigma / rho by c, tokens and workers, as a map and as JSON.

rho says how many times the tokens a method needs (ladder_fit.py), sigma how many times shorter its
step is (predict/sigma.py), and sigma / rho how many times sooner it reaches the loss of dense
training than that does itself, in bf16 and with overlap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gcbench.papers.ladder.ladder import Cell, Ladder, Tick
from gcbench.papers.ladder.ladder_fit import STAND_IN, Fit, Place, Rho, fits_of
from gcbench.papers.tables.configs import compose_row
from gcbench.papers.tables.rows import Row, group_runs
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
from gcbench.runner.predict.devices import format_rate, read_device, read_link
from gcbench.runner.predict.sigma import (
    BELOW,
    LEAST,
    OVERLAP,
    PER_TOKEN,
    SAME,
    SOME,
    UNCOVERED,
    Bounded,
    Cost,
    Verdict,
    Workload,
    bits_a_value,
    cost_of,
    judge,
    times_shorter,
    workload_on,
)
from gcbench.runner.predict.subject import methods_by_exchange
from gcbench.runner.records.store import RecordedRun

CS = [10 ** (-2 + i / 16) for i in range(65)]
WORKERS = (2, 4, 8, 16, 32, 64)
MOST = 64  # workers for which exchanges have to be possible
GRAYS = {BELOW: "#e6e6e6", OVERLAP: "#c8c8c8", SOME: "#c4d3b4", UNCOVERED: "#f6f6f6"}
PALETTE = (BLUE, GREEN, VERMILLION, PURPLE, ORANGE, SKY, BLACK)
STRONG, PALE = 0.75, 0.35  # share of a color
NARROWEST = 6  # cells of a stretch that has its number in it


class Contender(NamedTuple):
    """A method of a ladder, with what it waits for, by workers, and its fit."""

    label: str
    family: str
    bits: float  # that it sends, a value and step
    costs: Mapping[int, Cost]
    fit: Fit


class Answer(NamedTuple):
    """All that the map is made of."""

    ladder: Ladder
    workload: Workload
    dense: Mapping[int, Cost]  # by workers
    dense_label: str
    contenders: Sequence[Contender]
    runs: int

    @property
    def lengths(self) -> list[float]:
        """Return the lengths of dense training, from the shortest to the longest, by doublings."""
        places = self.contenders[0].fit.law.means.places
        low, high = min(p.length for p in places), max(p.length for p in places)
        return [low * 2**i for i in range(round(math.log2(high / low)) + 1)]

    @property
    def place(self) -> Place:
        """Return the place of which is told in words: the size that covers most methods, T = 1."""
        sizes = [one.parameters for one in self.ladder.sizes.values() if one.lengths]
        places = [Place(n, self.ladder.tuned[1], 1) for n in sorted(sizes)]
        return max(
            places[::-1],
            key=lambda place: sum(bool(_bounds(o.fit.rho(place))) for o in self.contenders),
        )

    def speedups(self, c: float, place: Place) -> list[Bounded]:
        """Return sigma / rho of every method."""
        workers, found = int(place.workers), []
        for one in self.contenders:
            sigma = times_shorter(self.dense[workers], one.costs[workers], c, self.workload)
            rho = one.fit.rho(place)
            found.append(
                Bounded(
                    one.label,
                    sigma / rho.value if rho.value else None,
                    sigma / rho.high,
                    sigma / rho.low if rho.low else math.inf,
                )
            )
        return found

    def best(self, c: float, place: Place) -> Verdict:
        return judge(self.dense_label, self.speedups(c, place))


def answer_of(table: Table, rows: Sequence[Row]) -> Answer | None:
    """Return the answer of a ladder's rows; None before a method ran beside dense training."""
    ladder = table.ladder
    made = fits_of(ladder, rows) if ladder else None
    if not (ladder and made):
        return None
    device = read_device(ladder.map.device)
    workload = workload_on(device, ladder.map.tokens, ladder.map.buckets)
    contenders, dense = [], {}
    # The rows of the largest model with all methods, whose small tensors weigh least.
    usual = {row.spec.title: row.spec for row in rows if _is_usual(ladder, row)}
    for title, spec in usual.items():
        made_of = compose_row(spec)
        family = made_of.choices["compressor"]
        if family != STAND_IN and title not in made.fits.methods:
            continue
        forms = methods_by_exchange(made_of.config, title, device, MOST)
        costs = {k: cost_of(forms, k, device, workload) for k in WORKERS}
        if family == STAND_IN:
            dense[title] = costs
        else:
            bits = bits_a_value(next(iter(forms.values())), ladder.tuned[1])
            contenders.append(Contender(title, family, bits, costs, made.fits.methods[title]))
    if not (dense and contenders):
        return None
    runs = sum(len(by_seed) for of in made.losses.values() for by_seed in of.values())
    return Answer(ladder, workload, *dense.popitem()[::-1], contenders, runs)


def _is_usual(ladder: Ladder, row: Row) -> bool:
    cell = Cell.of(str(row.spec.name))
    return (cell.workers, cell.length) == (ladder.tuned[1], 1)


def as_json(answer: Answer) -> dict[str, Any]:
    """Return all that the map is made of, with rho on a grid of sizes, workers and lengths.

    An interval's limit is null where it is 0 or infinite, and rho where it is not known.
    """
    sizes = [float(size.parameters) for size in answer.ladder.sizes.values()]
    sizes = sorted({*sizes, *(round(math.sqrt(a * b)) for a, b in pairwise(sizes))})
    lengths, place = answer.lengths, answer.place
    return {
        "parameters": sizes,
        "workers": WORKERS,
        "lengths": lengths,
        "tokens": 20,
        "c": [CS[0], CS[-1]],
        "workload": answer.workload._asdict(),
        "device": answer.ladder.map.device,
        "place": {
            **place._asdict(),
            "uncovered": [
                one.label for one in answer.contenders if not _bounds(one.fit.rho(place))
            ],
        },
        "ticks": [
            {
                "title": tick.title,
                "c": _round(c),
                "is": text,
                "best": _verdict(answer.best(c, place)),
            }
            for tick in answer.ladder.map.ticks
            for c, text in [c_of(tick, answer.ladder.map.tokens)]
        ],
        "least": LEAST,
        "runs": answer.runs,
        "dense": {
            "label": answer.dense_label,
            "family": STAND_IN,
            **_costs(answer.dense),
        },
        "methods": [
            {
                "label": one.label,
                "family": one.family,
                "bits": _round(one.bits),
                **_costs(one.costs),
                "rho": [
                    [[_bounds(one.fit.rho(Place(n, k, t))) for t in lengths] for k in WORKERS]
                    for n in sizes
                ],
            }
            for one in answer.contenders
        ],
    }


def _costs(costs: Mapping[int, Cost]) -> dict[str, Any]:
    """Return what a method waits for: by exchange and workers, bits and coding."""
    first = next(iter(costs.values()))
    return {
        "every": first.every,
        "in_buckets": first.in_buckets,
        "forms": {
            exchange: {
                "same": exchange == next(iter(first.forms)) or exchange in SAME,
                "costs": {k: [_round(part) for part in costs[k].forms[exchange]] for k in costs},
            }
            for exchange in first.forms
        },
    }


def _bounds(rho: Rho) -> list[float | None] | None:
    """Return rho with its limits; None where nothing is known."""
    known = [rho.value, rho.low or None, rho.high if math.isfinite(rho.high) else None]
    return [None if one is None else _round(one) for one in known] if any(known) else None


def _verdict(verdict: Verdict) -> dict[str, Any]:
    limits = {"low": verdict.low, "high": verdict.high}
    known = {name: _round(one) for name, one in limits.items() if math.isfinite(one)}
    return {**verdict._asdict(), "value": _round(verdict.value), "low": None, "high": None, **known}


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def answers_of(runs: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield what a page needs to draw the maps of all ladders with such runs."""
    for table in map(read_table, table_names()):
        answer = table.ladder and answer_of(table, group_runs(table, runs, PAPER))
        if answer:
            yield {"table": table.name, **as_json(answer)}


def draw_answer(answer: Answer) -> Figure:
    """Draw one panel per size, over c and the length of dense training."""
    ladder, lengths = answer.ladder, answer.lengths
    sizes = {name: one for name, one in ladder.sizes.items() if one.lengths}
    workers = ladder.tuned[1]
    cells = {
        name: [[answer.best(c, Place(one.parameters, workers, t)) for c in CS] for t in lengths]
        for name, one in sizes.items()
    }
    won = Counter(v.label for rows in cells.values() for row in rows for v in row if not v.why)
    colors = dict(zip((label for label, _ in won.most_common()), PALETTE, strict=False))
    titles = [f"{name} parameters, {workers} workers" for name in cells]
    figure, axes = panels(titles, 1.9, columns=len(titles))
    places = [c_of(tick, ladder.map.tokens) for tick in ladder.map.ticks]
    for ax, rows in zip(axes, cells.values(), strict=True):
        _panel(ax, rows, colors)
        ax.set_yticks(range(len(lengths)), [f"{t:g}" for t in lengths])
        ax.set_xticks([-2, -1, 0, 1, 2], ["0.01", "0.1", "1", "10", "100"])
        for number, (c, _) in enumerate(places, start=1):
            ax.axvline(math.log10(c), color="black", linewidth=0.5, linestyle=":")
            ax.text(
                math.log10(c),
                len(lengths) - 0.45,
                str(number),
                fontsize=5,
                ha="center",
                va="bottom",
            )
        ax.set_title(ax.get_title(), pad=12)
        ax.set_xlabel("c: dense exchange / computing")
        ax.set_ylabel("T: length of dense training" if ax is axes[0] else "")
    grays = {v.why for rows in cells.values() for row in rows for v in row if v.why}
    handles = [
        *(Patch(color=color, label=label) for label, color in colors.items()),
        *(
            Patch(facecolor=GRAYS[why], edgecolor=BLACK, linewidth=0.3, label=why)
            for why in GRAYS
            if why in grays
        ),
    ]
    absent = ", ".join(f"{i}: {text}" for i, (_, text) in enumerate(places, start=1))
    return finish(
        figure,
        handles,
        [
            "Numbers: how many times sooner than dense bfloat16 with overlap the method with the "
            "largest sigma / rho is at the loss that dense training has after T x 20 tokens a "
            "parameter. Pale: not all methods ran there. Green gray: some surely pay, but none is "
            "surely the best. Gray: none surely pays.",
            f"c of the dotted lines, {absent}.",
        ],
    )


def _panel(ax: Axes, rows: Sequence[Sequence[Verdict]], colors: Mapping[str, str]) -> None:
    x = np.log10(CS)
    half = (x[1] - x[0]) / 2
    image = np.array([[_color(v, colors) for v in row] for row in rows])
    extent = (x[0] - half, x[-1] + half, -0.5, len(rows) - 0.5)
    ax.imshow(image, origin="lower", aspect="auto", extent=extent, interpolation="nearest")
    ax.grid(visible=False)
    for j, row in enumerate(rows):
        at = 0
        for _, stretch in groupby(row, key=lambda v: (v.label, bool(v.why))):
            some = list(stretch)
            middle, last = at + len(some) // 2, at + len(some) - 1
            at += len(some)
            if some[0].why or len(some) < NARROWEST:
                continue
            for i in dict.fromkeys(
                (middle, max(middle, last - 3)) if len(some) > 24 else (middle,)
            ):
                ax.text(x[i], j, f"{row[i].value:.2g}", fontsize=6, ha="center", va="center")


def c_of(tick: Tick, tokens: int) -> tuple[float, str]:
    """Return c of a tick, and its arithmetic."""
    rate, k = read_link("network", tick.link).bits_per_second, tick.workers
    c = 2 * (k - 1) / k * 16 / rate * tick.flops / (PER_TOKEN * tokens)
    return c, (
        f"{tick.title}: 2 x {k - 1}/{k} x 16 bit / {format_rate(rate)} over {PER_TOKEN} x "
        f"{tokens:,} / {tick.flops / 1e12:g} TFLOP/s ({tick.of}) = {c:.2g}"
    )


def _color(verdict: Verdict, colors: Mapping[str, str]) -> tuple[float, ...]:
    """Return a method's color, which is pale where not all methods ran; else a gray."""
    if verdict.why:
        return to_rgb(GRAYS[verdict.why])
    share = PALE if verdict.uncovered else STRONG
    return tuple(1 - share * (1 - part) for part in to_rgb(colors.get(verdict.label, BLACK)))
