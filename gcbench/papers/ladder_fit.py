"""Fits to a ladder: L(N) of dense training, and what a method loses beside it.

A method's loss is L(N) + penalty, where L(N) = L0 (N / N0)^-a, and the penalty is linear in log N
and log K (K: workers), with either sign. Penalties are differences between runs of the same seed.
Intervals are for 95 %: the seeds of each size are drawn anew, for all its runs together, with
deviations scaled to be right for so few, and times Student's t; what the lines do not fit widens
them. A size with one seed is drawn with the deviation that runs of the other sizes have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import t as student

from gcbench.papers.ladder import Cell, Ladder
from gcbench.papers.rows import Row
from gcbench.runner.drawing import finish, logarithmic, panels, style_of_method
from gcbench.runner.report import document as pages
from gcbench.runner.report.document import EMPTY, Document, Heading, Line, Section, Summary
from gcbench.runner.report.document import format_summary as format_losses

DRAWS = 2000
SHARE = 0.95
Place = tuple[int, int]  # parameters and workers
BySeed = Mapping[int, float]
LOSS = Heading("loss", "Loss", digits=4, deviation=True)


class Estimate(NamedTuple):
    """A number, and half the width of its interval; None if it is not known."""

    value: float
    half: float | None

    def text(self, form: str = "+.4f") -> str:
        if self.half is None:
            return f"{self.value:{form}}"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"

    @property
    def low(self) -> float:
        return self.value - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.value + (self.half or 0.0)

    @property
    def as_slope(self) -> str:
        """Return its text, and whether what it is the slope of surely grows or shrinks."""
        sure = {self.low > 0: ", grows", self.high < 0: ", shrinks"}.get(True, "")
        return self.text() + (sure if self.half is not None else "")


@dataclass(frozen=True)
class Fit:
    """The loss of a method beside dense training, and its slopes, None for one size, or one K."""

    penalties: Mapping[Place, BySeed]
    origin: Place
    penalty: Estimate  # at the origin
    per_decade: Estimate | None  # of parameters
    per_doubling: Estimate | None  # of workers
    predicted: Estimate | None  # the loss at the place that is held out

    @property
    def has_origin(self) -> bool:
        """Return whether the fit says something there: not where all ran at another size, or K."""
        apart = zip(
            (self.per_decade, self.per_doubling),
            *(_logs(p, self.origin) for p in self.penalties),
            strict=True,
        )
        return all(slope or not any(logs) for slope, *logs in apart)

    def at(self, place: Place) -> float:
        slopes = [slope.value if slope else 0.0 for slope in (self.per_decade, self.per_doubling)]
        return self.penalty.value + float(np.dot(slopes, _logs(place, self.origin)))


def _logs(place: Place, origin: Place) -> list[float]:
    return [float(np.log10(place[0] / origin[0])), float(np.log2(place[1] / origin[1]))]


def fit(
    dense: Mapping[int, BySeed], losses: Mapping[Place, BySeed], origin: Place, held: Place
) -> Fit | None:
    """Return the fit to a method's losses beside the dense ones, by parameters; None without any.

    `held` takes no part in it. Of each size, the seeds count that all its runs have.
    """
    places = [
        place
        for place in losses
        if place != held and losses[place].keys() & dense.get(place[0], {}).keys()
    ]
    if not places:
        return None
    seeds: dict[int, list[int]] = {}
    for n, k in places:
        shared = seeds.get(n, dense[n].keys()) & losses[n, k].keys()
        seeds[n] = sorted(shared)
    paired = {p: {s: losses[p][s] - dense[p[0]][s] for s in seeds[p[0]]} for p in places}
    if not all(paired.values()):
        return None
    freedom = sum(len(of_size) - 1 for of_size in seeds.values())
    wide = float(student.ppf((1 + SHARE) / 2, freedom)) if freedom else None
    draws = _Draws(seeds)
    known = [len({p[0] for p in places}) > 1, len({p[1] for p in places}) > 1]
    used = [i for i in range(2) if known[i]]
    x = np.array([[1.0, *(_logs(p, origin)[i] for i in used)] for p in places])
    y = np.array([*draws.means(paired, dense=-1).values()])  # [places, 1 + draws]
    coefficients = np.linalg.pinv(x) @ y
    unfit = _rest(x, y[:, 0]) * np.diag(np.linalg.pinv(x.T @ x))
    made = [_estimate(one, wide, float(v)) for one, v in zip(coefficients, unfit, strict=True)]
    slopes = [made[1 + used.index(i)] if known[i] else None for i in range(2)]
    predicted = None
    if all(known):
        at = np.array([1.0, *_logs(held, origin)])
        beyond = at @ coefficients
        whole = {(n, 1): {s: dense[n][s] for s in seeds[n]} for n in seeds}
        drawn = draws.means(whole, dense=1)
        law, law_rest = _law({n: losses for (n, _), losses in drawn.items()}, held[0])
        rest = _rest(x, y[:, 0]) * float(1 + at @ np.linalg.pinv(x.T @ x) @ at) + law_rest
        predicted = _estimate(beyond + law, wide, rest)
    return Fit(paired, origin, made[0], slopes[0], slopes[1], predicted)


class _Draws:
    """Draws of the seeds of each size, the same for all that is computed from its runs."""

    def __init__(self, seeds: Mapping[int, Sequence[int]]) -> None:
        self.source = np.random.default_rng(0)
        self.shares = {
            n: self.source.multinomial(len(some), [1 / len(some)] * len(some), DRAWS) / len(some)
            for n, some in seeds.items()
        }
        self.alone = {n: self.source.standard_normal(DRAWS) for n in seeds if len(seeds[n]) == 1}

    def means(self, values: Mapping[Place, BySeed], dense: int) -> dict[Place, np.ndarray]:
        """Return each place's mean over seeds, and then that of every draw, [1 + DRAWS].

        `dense`: the sign with which the loss of a dense run counts in a value.
        """
        variances = [variance(some.values()) for some in values.values() if len(some) > 1]
        spread = fmean(variances or [0.0]) ** 0.5
        drawn = {}
        for (n, k), by_seed in values.items():
            some, count = np.array([*by_seed.values()]), len(by_seed)
            if count > 1:
                apart = (count / (count - 1)) ** 0.5 * (self.shares[n] @ some - some.mean())
            else:  # half of the variance is taken to be that of the dense run, common to a size
                own = self.source.standard_normal(DRAWS)
                apart = spread * (dense * self.alone[n] + own) / 2**0.5
            drawn[n, k] = some.mean() + np.concatenate([[0.0], apart])
        return drawn


def _estimate(drawn: np.ndarray, wide: float | None, rest: float = 0.0) -> Estimate:
    """Return the first value, with an interval from the others and from a variance `rest`."""
    if wide is None:
        return Estimate(float(drawn[0]), None)
    variance = float(np.mean((drawn[1:] - drawn[0]) ** 2))
    return Estimate(float(drawn[0]), wide * (variance + rest) ** 0.5)


def _rest(x: np.ndarray, y: np.ndarray) -> float:
    """Return the variance of what a fit leaves, which another place has, too."""
    freedom = len(x) - x.shape[1]
    rest = y - x @ (np.linalg.pinv(x) @ y)
    return float(rest @ rest) / freedom if freedom > 0 else 0.0


def _law(dense: Mapping[int, np.ndarray], n: int) -> tuple[np.ndarray, float]:
    """Return L(n) by the power law through dense losses, and the variance of what it leaves."""
    x = np.array([[1.0, np.log10(each / n)] for each in dense])
    y = np.log10(np.array([*dense.values()]))
    loss = 10 ** (np.linalg.pinv(x) @ y)[0]
    return loss, _rest(x, y[:, 0]) * float(loss[0] * np.log(10)) ** 2


class Fits(NamedTuple):
    """A ladder's losses by the title of a method, and the fits to them."""

    losses: dict[str, dict[Place, BySeed]]
    families: dict[str, str]
    dense: dict[int, BySeed]
    fits: dict[str, Fit]
    held: Place


def fits_of(ladder: Ladder, rows: Sequence[Row]) -> Fits | None:
    """Return the fits to the rows of a ladder; None before any method ran beside dense training."""
    losses: dict[str, dict[Place, BySeed]] = {}
    families = {}
    for row in rows:
        if by_seed := row.values_by_seed("loss"):
            size, workers, length = Cell.of(str(row.spec.name))
            if length > 1:
                continue
            place = ladder.sizes[size].parameters, workers
            losses.setdefault(row.spec.title, {})[place] = by_seed
            families[row.spec.title] = row.done[0].result.choices["compressor"]
    first = rows[0].spec.title
    dense = {n: by_seed for (n, _), by_seed in losses.get(first, {}).items()}
    origin, held = (
        ladder.place(*ladder.tuned),
        ladder.place(ladder.held_out[0].size, ladder.held_out[0].workers),
    )
    known = {n: by_seed for n, by_seed in dense.items() if n != held[0]}
    made = {
        title: fit(known, of_method, origin, held)
        for title, of_method in losses.items()
        if title != first
    }
    fits = {title: one for title, one in made.items() if one}
    return Fits(losses, families, dense, fits, held) if fits else None


def with_fits(document: Document, ladder: Ladder, fits: Fits) -> Document:
    """Return a table's page with the fits in place of its cells, whose losses stand below."""
    size, workers = ladder.tuned
    held = f"{ladder.held_out[0].size}, K = {ladder.held_out[0].workers}"
    headings = [
        Heading("penalty", f"Penalty at {size}, K = {workers}"),
        Heading("per_decade", "With ten times the parameters"),
        Heading("per_doubling", "With twice the workers"),
        Heading("predicted", f"Loss at {held}, predicted"),
        Heading("measured", "Measured", digits=4, deviation=True),
    ]
    lines = [
        _line(title, one, fits.losses[title].get(fits.held)) for title, one in fits.fits.items()
    ]
    names = {one.parameters: name for name, one in ladder.sizes.items()}
    below = [
        f"{title}, {names[n]}: "
        + ", ".join(f"K = {k} {_losses(of[n, k])}" for m, k in sorted(of) if m == n)
        for title, of in fits.losses.items()
        for n in dict.fromkeys(n for n, _ in of)
    ]
    inside = [
        abs(fmean(measured.values()) - one.predicted.value) <= (one.predicted.half or 0.0)
        for title, one in fits.fits.items()
        if one.predicted and (measured := fits.losses[title].get(fits.held))
    ]
    told = f"{sum(inside)} of {len(inside)} losses measured at {held} are inside their intervals."
    sections = [
        *([Section("Held out", [told])] if inside else []),
        Section("Test losses, in nats", below),
        *document.sections,
    ]
    return replace(document, headings=headings, lines=lines, sections=sections)


def _losses(by_seed: BySeed) -> str:
    return format_losses(Summary.of([*by_seed.values()]), LOSS)


def _line(title: str, one: Fit, measured: BySeed | None) -> Line:
    slopes = [e.as_slope if e else EMPTY for e in (one.per_decade, one.per_doubling)]
    predicted = one.predicted.text(".4f") if one.predicted else EMPTY
    texts = [one.penalty.text() if one.has_origin else EMPTY, *slopes, predicted]
    summary = Summary.of([*measured.values()]) if measured else None
    seeds = ", ".join(map(str, sorted({s for by_seed in one.penalties.values() for s in by_seed})))
    return Line(
        title,
        None,
        None,
        [*(pages.Cell(None, None, text) for text in texts), pages.Cell(summary)],
        seeds,
    )


def draw_penalties(fits: Fits) -> Figure:
    """Draw what methods lose over the size, one panel per number of workers."""
    workers = sorted({k for one in fits.fits.values() for _, k in one.penalties})
    figure, axes = panels([f"K = {k}" for k in workers], columns=min(len(workers), 4))
    looks: dict[str, Any] = {}
    for title in fits.fits:
        family = fits.families[title]
        nth = sum(fits.families[other] == family for other in looks)
        looks[title] = style_of_method(family, nth)
    for ax in axes[1:]:
        ax.sharex(axes[0])
        ax.sharey(axes[0])
    for ax, k in zip(axes, workers, strict=True):
        for title, one in fits.fits.items():
            some = {n: [*by.values()] for (n, m), by in sorted(one.penalties.items()) if m == k}
            if not some:
                continue
            means = np.array([fmean(values) for values in some.values()])
            spread = [
                means - [min(v) for v in some.values()],
                [max(v) for v in some.values()] - means,
            ]
            ax.errorbar([*some], means, yerr=spread, **{**looks[title], "linestyle": "none"})
            ax.plot([*some], [one.at((n, k)) for n in some], **{**looks[title], "marker": ""})
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set(xlabel="Parameters", ylabel="Loss over dense (nats)" if ax is axes[0] else "")
        logarithmic(ax, "x")
    handles = [Line2D([], [], label=title, **look) for title, look in looks.items()]
    note = "Points: means of pairs of runs with the same seed, lowest to highest. Lines: the fit."
    return finish(figure, handles, [note])
