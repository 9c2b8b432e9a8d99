"""Fits to a ladder: how many times the tokens a method needs to reach the loss of dense training.

The logarithm of dense training's loss is a surface over log N and log T (N: parameters, T: tokens a
parameter, in units of 20), and so is what a method adds to it, which also depends on log K (K:
workers); it is fitted to differences between runs of the same seed. Where dense training has no
fp32 run, that of bfloat16 stands for it, of the same seed: where both ran they differ by less than
seeds do.

A surface is a linear trend (dense training's has squares, too), a misfit, and the noise of
seeds: y = x beta + z + e, universal kriging (Cressie, Statistics for Spatial Data, 1993, section
3.4). The misfits z of two places are alike by exp(-d^2 / 2), where d is their distance in steps of
the ladder: 3.4 times the parameters, 4 times the optimizer's steps (which grow as N^0.4 T), or 256
times the workers, over which little changes. So a place that ran is known as its seeds tell it, one
beside it nearly so, and far from all of them only the trend is left, with the misfit as doubt. The
variance of the misfit is the likeliest one (restricted likelihood); a method's counts together with
the relative one of all methods, which weighs as much as two places (Smyth 2004, "Linear models and
empirical Bayes methods").

rho(N, T, K) = T' / T, where the method's loss after T' is that of dense training after T. It is
known only where (N, T', K) lies within the convex hull of the places where the method ran, in
logarithms, and (N, T) within that of dense training; a quarter beyond the shortest and the longest
length counts as within. Beyond the longest one it is "at least" something.

Intervals are for 95 %. (1) Seeds: covariances of means over seeds, which are what drawing the
seeds of each (N, T) anew, for all K together, comes to, with n / (n - 1) for so few; a place with
one seed has the variance of the others. Dense training's surface and the differences are taken to
be independent, which is on the safe side, as a difference contains the dense loss with the other
sign. (2) The misfit, between places and beyond them. The parts are added as variances, and
Student's t has the degrees of freedom of Welch and Satterthwaite. What is held out takes no part in
anything; its intervals have the noise of what is measured there, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import fmean, variance
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import linprog, minimize_scalar
from scipy.stats import t as student

from gcbench.papers.ladder.ladder import Cell, Ladder
from gcbench.papers.tables.rows import Row
from gcbench.runner.drawing import finish, logarithmic, panels, style_of_method
from gcbench.runner.report import document as pages
from gcbench.runner.report.document import EMPTY, Document, Heading, Line, Section, Summary
from gcbench.runner.report.document import format_summary as format_losses

SHARE = 0.95
BESIDE = 2  # places as many as which the relative misfit of all methods counts
ALIKE = (math.log10(3.4), 8.0, 2.0)  # a step of the ladder in log10 N, log2 K, log2 of steps
STEPS_BY_SIZE = 0.4 * math.log2(10)  # steps grow as N^0.4 T
LEAST = 1e-12  # variance, of a millionth of the loss
EDGE = math.log2(1.25)  # beyond the shortest and the longest length, in doublings
STEPS = 257  # of lengths at which a curve is looked at
STAND_IN = "bf16"  # the compressor whose losses stand for those of dense training
BySeed = Mapping[int, float]
LOSS = Heading("loss", "Loss", digits=4, deviation=True)


class Place(NamedTuple):
    """A number of parameters, of workers, and a length of training."""

    parameters: float
    workers: float
    length: float

    @property
    def logs(self) -> tuple[float, float, float]:
        """Return log10 N, log2 K and log2 T."""
        return math.log10(self.parameters), math.log2(self.workers), math.log2(self.length)


Losses = Mapping[Place, BySeed]  # those of dense training have one worker


class Estimate(NamedTuple):
    """A number with its 95 % interval, which is infinite if nothing is known of it."""

    value: float
    low: float
    high: float

    def text(self, form: str = ".4f") -> str:
        if not math.isfinite(self.high - self.low):
            return f"{self.value:{form}}"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


class Rho(NamedTuple):
    """Times the tokens of dense training for its loss; None: not known, but for the bounds."""

    value: float | None
    low: float = 0.0
    high: float = math.inf
    why: str = ""  # why it is not known

    @property
    def text(self) -> str:
        """Return 1.23 [1.10, 1.38], or at least 1.10, or nothing."""
        if self.value is None:
            if self.low >= 1:
                return f"at least {self.low:.3g}"
            return f"at most {self.high:.3g}" if math.isfinite(self.high) else EMPTY
        low = f"{self.low:.2f}" if self.low > 0 else "?"
        high = f"{self.high:.2f}" if math.isfinite(self.high) else "?"
        return f"{self.value:.2f} [{low}, {high}]"


class Variance(NamedTuple):
    """A variance with its degrees of freedom."""

    value: float
    freedom: float


def half_width(parts: Iterable[Variance]) -> float:
    """Return half a 95 % interval from independent variances (Welch, Satterthwaite)."""
    some = [part for part in parts if part.value > 0]
    if not all(part.freedom > 0 for part in some):
        return math.inf
    total = sum(part.value for part in some)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(part.value**2 / part.freedom for part in some)
    return float(student.ppf((1 + SHARE) / 2, freedom)) * total**0.5


class Means(NamedTuple):
    """Means over seeds by place, with their covariances."""

    places: list[Place]
    values: np.ndarray
    covariance: np.ndarray  # [places, places]
    spread: Variance  # of one run
    counts: np.ndarray  # of seeds

    @property
    def freedom(self) -> float:
        return self.spread.freedom

    @property
    def mean_square(self) -> float:
        return float(np.mean(self.values**2))


def means_of(values: Losses, in_common: float) -> Means:
    """Return the means of these values; those of one (N, T) covary as their seeds do.

    `in_common` is the share of the variance that all K of an (N, T) have in common, for places that
    have too few seeds to tell.
    """
    variances = [variance(some.values()) for some in values.values() if len(some) > 1]
    spread = fmean(variances or [0.0])
    covariance = np.zeros((len(values), len(values)))
    for i, (place, some) in enumerate(values.items()):
        for j, (other, others) in enumerate(values.items()):
            both = sorted(some.keys() & others.keys())
            if place[::2] != other[::2] or not both:
                continue
            if len(both) > 1:
                one = float(np.cov([some[s] for s in both], [others[s] for s in both])[0, 1])
            else:
                one = spread if i == j else in_common * spread
            covariance[i, j] = len(both) * one / (len(some) * len(others))
    most: dict[tuple[float, ...], int] = {}
    for place, some in values.items():
        most[place[::2]] = max(len(some), most.get(place[::2], 1))
    freedom = sum(count - 1 for count in most.values())
    means = np.array([fmean(some.values()) for some in values.values()])
    counts = np.array([len(some) for some in values.values()])
    return Means([*values], means, covariance, Variance(spread, freedom), counts)


Term = tuple[int, int, int]  # powers of log N, log K and log T
Terms = Sequence[Term]
LINEAR: Terms = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
DECADE, DOUBLED, LONGER = LINEAR[1:]
BENT: Terms = ((0, 0, 2), (2, 0, 0))


class Trend:
    """Means over seeds, and a polynomial in the logarithms of their places."""

    def __init__(self, means: Means, origin: Place, terms: Terms = LINEAR) -> None:
        self.means, self.origin = means, origin
        self.terms: list[Term] = []
        for term in terms:
            if self._rank(tried := [*self.terms, term]) == len(tried):
                self.terms = tried
        self.x = self.rows(means.places)
        self.alike = alike(means.places, means.places)
        self.freedom = len(self.x) - len(self.terms)

    def _rank(self, terms: Terms, *more: Place) -> int:
        return int(np.linalg.matrix_rank(_matrix([*self.means.places, *more], self.origin, terms)))

    def rows(self, places: Sequence[Place]) -> np.ndarray:
        return _matrix(places, self.origin, self.terms)

    def knows(self, place: Place) -> bool:
        """Return whether it leads to a place: not to another size if all ran at one."""
        return self._rank(LINEAR, place) == self._rank(LINEAR)

    def inverse(self, misfit: float) -> np.ndarray:
        """Return the inverse of the covariance of the values, with misfits of this variance."""
        noise = self.means.spread.value / self.means.counts + LEAST
        return np.linalg.inv(misfit * self.alike + np.diag(noise))

    def deviance(self, misfit: float) -> float:
        """Return minus twice the restricted log-likelihood of a variance of the misfit (REML)."""
        inverse = self.inverse(misfit)
        by_trend = inverse @ self.x
        squares = self.x.T @ by_trend
        left = inverse - by_trend @ np.linalg.solve(squares, by_trend.T)
        values = self.means.values
        dets = np.linalg.slogdet(squares)[1] - np.linalg.slogdet(inverse)[1]
        return float(dets + values @ left @ values)


class Surface:
    """A trend with the misfits that its means show; see the head of this file."""

    def __init__(self, trend: Trend, misfit: Variance) -> None:
        self.trend, self.misfit, self.means = trend, misfit, trend.means
        inverse = trend.inverse(misfit.value)
        by_trend = trend.x.T @ inverse
        self._by_trend = np.linalg.solve(by_trend @ trend.x, by_trend)
        self.coefficients = self._by_trend @ self.means.values
        self._by_misfit = misfit.value * inverse @ (np.eye(len(trend.x)) - trend.x @ self._by_trend)

    def _weights(self, places: Sequence[Place]) -> np.ndarray:
        """Return how much each mean counts at each place."""
        near = alike(places, self.means.places)
        return self.trend.rows(places) @ self._by_trend + near @ self._by_misfit

    def values(self, places: Sequence[Place]) -> np.ndarray:
        return np.asarray(self._weights(places) @ self.means.values)

    def at(self, place: Place) -> float:
        return float(self.values([place])[0])

    def variances(self, *of: tuple[float, Place]) -> list[Variance]:
        """Return those of a sum of so many times its values at places: by seeds, by misfit."""
        factors, places = np.array([factor for factor, _ in of]), [place for _, place in of]
        weights = factors @ self._weights(places)
        among = factors @ alike(places, places) @ factors
        near = factors @ alike(places, self.means.places)
        share = among - 2 * near @ weights + weights @ self.trend.alike @ weights
        return self._parts(weights, max(0.0, float(share)))

    def _parts(self, weights: np.ndarray, share: float) -> list[Variance]:
        by_seeds = float(weights @ self.means.covariance @ weights)
        return [
            Variance(by_seeds, self.means.freedom),
            self.misfit._replace(value=self.misfit.value * share),
        ]

    def slope(self, term: Term) -> Estimate | None:
        """Return a coefficient of the trend; None if the places do not tell it."""
        if term not in self.trend.terms:
            return None
        i = self.trend.terms.index(term)
        weights, value = self._by_trend[i], float(self.coefficients[i])
        half = half_width(self._parts(weights, float(weights @ self.trend.alike @ weights)))
        return Estimate(value, value - half, value + half)


def _matrix(places: Sequence[Place], origin: Place, terms: Terms) -> np.ndarray:
    logs = np.array([place.logs for place in places]) - np.array(origin.logs)
    return np.stack([np.prod(logs**term, axis=1) for term in terms], axis=1)


def alike(some: Sequence[Place], others: Sequence[Place]) -> np.ndarray:
    """Return the correlations [some, others] of misfits: exp(-1/2) a step of the ladder apart."""
    logs = []
    for places in (some, others):
        n, k, t = np.array([place.logs for place in places]).T
        logs.append(np.stack([n, k, t + STEPS_BY_SIZE * n], axis=1) / ALIKE)
    apart = logs[0][:, None] - logs[1][None]
    return np.exp(-np.sum(apart**2, axis=2) / 2)


def likeliest(deviance: Callable[[float], float]) -> float:
    """Return the variance of the misfit that is most likely."""
    found = minimize_scalar(
        lambda log: deviance(math.exp(log)), bounds=(math.log(LEAST), 0.0), method="bounded"
    )
    return math.exp(found.x)


class Hull:
    """The convex hull of places, in the logarithms of N, K and T."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.logs = np.array(sorted({place.logs for place in places}))
        self._found: dict[tuple[float, float], tuple[float, float] | None] = {}

    def lengths(self, place: Place) -> tuple[float, float] | None:
        """Return log2 of the shortest and the longest length there; None: it is outside."""
        at = place.logs[:2]
        if at not in self._found:
            self._found[at] = self._ends(at)
        return self._found[at]

    def _ends(self, at: tuple[float, float]) -> tuple[float, float] | None:
        columns = self.logs.T
        within = np.array([np.ones(len(self.logs)), columns[0], columns[1]])
        ends = []
        for sign in (1, -1):
            found = linprog(sign * columns[2], A_eq=within, b_eq=[1.0, at[0], at[1]])
            if not found.success:
                return None
            ends.append(sign * float(found.fun))
        return ends[0], ends[1]


@dataclass(frozen=True)
class Fit:
    """A method's loss beside dense training, and what follows from both."""

    losses: Losses  # that it is fitted to
    law: Surface  # of dense training
    own: Surface  # of the differences

    @property
    def nats_per_decade(self) -> float | None:
        """Return what its loss beyond dense training's gains with ten times the parameters."""
        if DECADE not in self.own.trend.terms:
            return None
        of_law, own = (
            one.coefficients[one.trend.terms.index(DECADE)] if DECADE in one.trend.terms else 0.0
            for one in (self.law, self.own)
        )
        origin = self.own.trend.origin
        dense = math.exp(self.law.at(_dense(origin)))
        return float(dense * (math.exp(self.own.at(origin)) * (of_law + own) - of_law))

    @cached_property
    def noise(self) -> Variance:
        """Return the variance of the logarithm of a run's loss."""
        return means_of(_logarithms(self.losses), 0.5).spread

    @cached_property
    def hull(self) -> Hull:
        return Hull(self.losses)

    @cached_property
    def hull_of_dense(self) -> Hull:
        return Hull(self.law.means.places)

    def curve(self, place: Place, log_lengths: np.ndarray) -> np.ndarray:
        """Return the logarithms of the fitted losses there after these lengths."""
        places = [place._replace(length=2.0**t) for t in log_lengths]
        return self.law.values([*map(_dense, places)]) + self.own.values(places)

    def rho(self, place: Place) -> Rho:
        """Return rho at a number of parameters, of workers, and dense training's length."""
        start, target = place.logs[2], self.law.at(_dense(place))
        of_dense = self.hull_of_dense.lengths(_dense(place))
        if of_dense is None or not of_dense[0] - EDGE <= start <= of_dense[1] + EDGE:
            return Rho(None, why="dense training did not run there")
        ends = self.hull.lengths(place)
        if ends is None or start > ends[1] + EDGE:
            return Rho(None, why="it did not run there")

        steps = np.linspace(ends[0] - EDGE, ends[1] + EDGE, STEPS)
        curve = self.curve(place, steps)
        reached = partial(_first_below, steps, curve)
        found = reached(target)
        half = self._half(place, min(max(found, ends[0]), ends[1]))
        low, high = reached(target + half), reached(target - half)
        if math.isinf(found):
            low, high = min(low, ends[1]), max(high, ends[0])
        return Rho(
            2 ** (found - start) if math.isfinite(found) else None,
            2 ** (low - start),
            2 ** (high - start),
            "" if math.isfinite(found) else "beyond the lengths that ran",
        )

    def _half(self, place: Place, log_length: float) -> float:
        """Return half an interval of the log loss after a length less that of dense training."""
        if not (self.law.means.freedom and self.own.means.freedom):
            return math.inf
        there = place._replace(length=2**log_length)
        of_dense = self.law.variances((1, _dense(there)), (-1, _dense(place)))
        return half_width([*of_dense, *self.own.variances((1, there))])


def _dense(place: Place) -> Place:
    return place._replace(workers=1)


def _first_below(steps: np.ndarray, curve: np.ndarray, value: float) -> float:
    """Return where a curve first falls to a value; -inf: before its steps, inf: not in them."""
    below = np.flatnonzero(curve <= value)
    if not len(below):
        return math.inf
    if below[0] == 0:
        return -math.inf
    i = slice(below[0] - 1, below[0] + 1)
    return float(np.interp(-value, -curve[i], steps[i]))


def predict(law: Surface, of_method: Fit | None, place: Place, measured: Losses) -> Estimate | None:
    """Return the loss at a place that is held out; None if the fits do not lead there.

    Its interval has the noise of as many seeds as were measured there, or of one, as other places
    of the method have it.
    """
    seeds = len(measured.get(place, ())) or 1
    parts = [(law, _dense(place)), *([(of_method.own, place)] if of_method else [])]
    if not all(one.trend.knows(there) and one.misfit.freedom for one, there in parts):
        return None
    noise = of_method.noise if of_method else law.means.spread
    variances = [noise._replace(value=noise.value / seeds)]
    for one, there in parts:
        variances += one.variances((1, there))
    value = sum(one.at(there) for one, there in parts)
    known = all(one.means.freedom for one, _ in parts)
    half = half_width(variances) if known else math.inf
    return Estimate(math.exp(value), math.exp(value - half), math.exp(value + half))


class Fits(NamedTuple):
    """The fits to a ladder, and what its losses at held-out places were predicted to be."""

    law: Surface
    methods: dict[str, Fit]
    held: dict[tuple[str, Place], Estimate]


def fit(
    dense: Losses,
    losses: Mapping[str, Losses],
    origin: Place,
    held: Collection[tuple[str, Place]] = (),
    paired: Mapping[str, Losses] | None = None,
) -> Fits | None:
    """Return the fits to losses by method beside dense ones; None before any ran beside those.

    `held` are places by method, and by "" for dense training, which take no part. `paired` are the
    dense losses that a method's are compared with, where they are not all of `dense`.
    """
    known = {place: some for place, some in dense.items() if ("", place) not in held}
    if not known:
        return None
    trend = Trend(means_of(_logarithms(known), 1.0), origin, (*LINEAR, *BENT))
    law = Surface(trend, Variance(likeliest(trend.deviance), trend.freedom))
    trends: dict[str, tuple[Losses, Trend]] = {}
    for name, of_method in losses.items():
        beside = (paired or {}).get(name, known)
        differences = {
            place: both
            for place, some in of_method.items()
            if (name, place) not in held and _dense(place) in known
            for whole in [beside.get(_dense(place), {})]
            if (both := {s: math.log(some[s] / whole[s]) for s in some if s in whole})
        }
        if differences:
            used = {place: of_method[place] for place in differences}
            trends[name] = used, Trend(means_of(differences, 0.5), origin)
    misfits = misfits_of({name: trend for name, (_, trend) in trends.items()})
    methods = {n: Fit(used, law, Surface(own, misfits[n])) for n, (used, own) in trends.items()}
    found = {
        (name, place): predicted
        for name, place in held
        if (not name or name in methods)
        for predicted in [predict(law, methods.get(name), place, losses.get(name, dense))]
        if predicted
    }
    return Fits(law, methods, found) if methods else None


def misfits_of(trends: Mapping[str, Trend]) -> dict[str, Variance]:
    """Return the variances of methods' misfits: each by its own places and by all methods'."""
    spare = [one for one in trends.values() if one.freedom]
    relative = likeliest(
        lambda share: sum(one.deviance(share * one.means.mean_square) for one in spare)
    )
    weight = min(BESIDE, sum(one.freedom for one in spare))

    def of(trend: Trend) -> Variance:
        usual = max(relative * trend.means.mean_square, LEAST)
        value = likeliest(lambda v: trend.deviance(v) + weight * (math.log(v) + usual / v))
        return Variance(value, trend.freedom + weight)

    return {name: of(one) for name, one in trends.items()}


def _logarithms(losses: Losses) -> dict[Place, dict[int, float]]:
    return {
        place: {s: math.log(loss) for s, loss in some.items()} for place, some in losses.items()
    }


class LadderFits(NamedTuple):
    """A ladder's losses by the title of a method, and the fits to them."""

    losses: Mapping[str, Losses]
    dense: str  # the title of dense training
    families: dict[str, str]
    fits: Fits
    names: dict[Place, str]  # of the places that are held out

    def measured(self, title: str, place: Place) -> BySeed:
        """Return the losses at a place that is held out; "" stands for dense training."""
        return self.losses.get(title or self.dense, {}).get(place, {})


def fits_of(ladder: Ladder, rows: Sequence[Row]) -> LadderFits | None:
    """Return the fits to the rows of a ladder; None before any method ran beside dense training."""
    losses: dict[str, dict[Place, BySeed]] = {}
    families: dict[str, str] = {}
    for row in rows:
        if by_seed := row.values_by_seed("loss"):
            place = place_of(ladder, Cell.of(str(row.spec.name)))
            losses.setdefault(row.spec.title, {})[place] = by_seed
            families[row.spec.title] = row.done[0].result.choices["compressor"]
    first = rows[0].spec.title
    whole = losses.get(first, {})
    halves = [title for title, family in families.items() if family == STAND_IN]
    dense = with_stand_in(whole, losses[halves[0]] if halves else {})
    kinds = {str(row.spec.name).rsplit("_", 3)[0]: row.spec.title for row in rows}
    names, held = {}, set()
    for cell in ladder.held_out:
        size = ladder.sizes[cell.size]
        place = Place(size.parameters, cell.workers, cell.length)
        names[place] = f"{cell.size}, K = {cell.workers}, T = {cell.length}"
        held |= {(kinds[name], place) for name in cell.rows if kinds.get(name, first) != first}
        if cell.length not in size.lengths:  # no other row needs the dense run
            held.add(("", _dense(place)))
            names[_dense(place)] = f"{cell.size}, T = {cell.length}"
    methods = {title: of for title, of in losses.items() if title != first}
    origin = Place(ladder.sizes[ladder.tuned[0]].parameters, ladder.tuned[1], 1)
    made = fit(dense, methods, origin, held, dict.fromkeys(halves, whole))
    return LadderFits(losses, first, families, made, names) if made else None


def place_of(ladder: Ladder, cell: Cell) -> Place:
    return Place(ladder.sizes[cell.size].parameters, cell.workers, cell.length)


def with_stand_in(whole: Losses, half: Losses) -> Losses:
    """Return dense losses; where a seed has no run in fp32, that in 16 bits of fewest workers."""
    dense: dict[Place, BySeed] = {}
    for place in sorted(half, reverse=True):
        dense[_dense(place)] = {**dense.get(_dense(place), {}), **half[place]}
    for place, by_seed in whole.items():
        dense[place] = {**dense.get(place, {}), **by_seed}
    return {place: dict(sorted(dense[place].items())) for place in sorted(dense)}


def with_fits(document: Document, ladder: Ladder, made: LadderFits) -> Document:
    """Return a table's page with rho in place of its cells; the fits and losses stand below."""
    workers = ladder.tuned[1]
    places = [
        (name, Place(size.parameters, workers, length))
        for name, size in ladder.sizes.items()
        for length in size.lengths[:-1] or size.lengths
    ]
    headings = [Heading(str(p), f"rho at {name}, T = {p.length:g}") for name, p in places]
    lines = [
        Line(
            title,
            None,
            None,
            [pages.Cell(None, None, one.rho(place).text) for _, place in places],
            ", ".join(map(str, sorted({s for some in one.losses.values() for s in some}))),
        )
        for title, one in made.fits.methods.items()
    ]
    sections = [
        Section("Held out", _held_out(made)),
        Section("Fits to the logarithm of the loss", _told(made)),
        Section("Test losses, in nats", _losses(ladder, made)),
    ]
    under = [
        *document.under,
        "rho: how many times the tokens a method needs to reach dense training's loss after T, "
        f"each run with a schedule made for its length; K = {workers}, 95 % intervals with lack of "
        "fit. ?: a limit that lies beyond the lengths that ran. -: not covered.",
    ]
    return replace(
        document,
        under=under,
        headings=headings,
        lines=lines,
        sections=[s for s in sections if s.lines] + document.sections,
    )


def _held_out(made: LadderFits) -> list[str]:
    lines, inside = [], []
    for (title, place), predicted in sorted(made.fits.held.items()):
        measured = made.measured(title, place)
        said = "not run yet"
        if measured:
            mean = fmean(measured.values())
            inside.append(predicted.low <= mean <= predicted.high)
            said = f"{_format(measured)}, {'inside' if inside[-1] else 'outside'}"
        lines.append(
            f"{title or made.dense}, {made.names[place]}: predicted {predicted.text()}, measured "
            f"{said}"
        )
    counted = f"{sum(inside)} of {len(inside)} losses measured are inside their intervals."
    return [counted, *lines] if inside else lines


def _told(made: LadderFits) -> list[str]:
    """Return the coefficients, as shares of the loss."""
    law = made.fits.law
    origin = law.trend.origin
    at = f"{origin.parameters:,.0f} parameters"
    dense = _coefficients(law)
    lines = [f"{made.dense}: {math.exp(law.at(_dense(origin))):.4f} with {at}, T = 1; {dense}"]
    for title, one in made.fits.methods.items():
        told = _coefficients(one.own)
        if one.own.trend.knows(origin):
            value, half = one.own.at(origin), half_width(one.own.variances((1, origin)))
            beyond = _percent(Estimate(value, value - half, value + half))
            told = f"{beyond} over dense with {at}, K = {origin.workers:g}, T = 1; {told}"
        lines.append(f"{title}: {told}")
    return lines


def _coefficients(surface: Surface) -> str:
    kinds = {
        DECADE: "ten times the parameters",
        DOUBLED: "twice the workers",
        LONGER: "twice the tokens",
    }
    told = [
        f"{_percent(slope)} with {kind}"
        for term, kind in kinds.items()
        if (slope := surface.slope(term))
    ]
    bent = sum(term in BENT for term in surface.trend.terms)
    told += [f"{bent} of second order"] if bent else []
    misfit = f"a misfit of {100 * surface.misfit.value**0.5:.2f} %"
    return ", ".join([*told, f"{len(surface.means.places)} places", misfit])


def _percent(estimate: Estimate) -> str:
    low, value, high = (
        100 * math.expm1(min(x, 99.0)) for x in (estimate.low, estimate.value, estimate.high)
    )
    known = math.isfinite(estimate.high - estimate.low)
    return f"{value:+.1f} %" + f" [{low:+.1f}, {high:+.1f}]" * known


def _losses(ladder: Ladder, made: LadderFits) -> list[str]:
    return [
        f"{title}, {name}, T = {length:g}: "
        + ", ".join(f"K = {p.workers:g} {_format(of[p])}" for p in sorted(some))
        for title, of in made.losses.items()
        for name, size in ladder.sizes.items()
        for length in sorted({p.length for p in of if p.parameters == size.parameters})
        for some in [[p for p in of if p[::2] == (size.parameters, length)]]
    ]


def _format(by_seed: BySeed) -> str:
    return format_losses(Summary.of([*by_seed.values()]), LOSS)


def draw_penalties(made: LadderFits) -> Figure:
    """Draw how much larger methods' losses are, over the size: a panel per workers and length."""
    fits = made.fits.methods
    kinds = sorted(
        {place[1:] for one in fits.values() for place in one.losses}, key=lambda k: k[::-1]
    )
    figure, axes = panels([f"K = {k:g}, T = {t:g}" for k, t in kinds], columns=min(len(kinds), 4))
    looks: dict[str, Any] = {}
    for title in fits:
        family = made.families[title]
        looks[title] = style_of_method(family, sum(made.families[o] == family for o in looks))
    for ax in axes[1:]:
        ax.sharex(axes[0])
        ax.sharey(axes[0])
    for ax, kind in zip(axes, kinds, strict=True):
        for title, one in fits.items():
            at = {p: i for i, p in enumerate(one.own.means.places) if p[1:] == kind}
            if not at:
                continue
            sizes, means = [p.parameters for p in at], one.own.means
            points = [100 * math.expm1(means.values[i]) for i in at.values()]
            spread = [100 * means.covariance[i, i] ** 0.5 for i in at.values()]
            ax.errorbar(sizes, points, yerr=spread, **{**looks[title], "linestyle": "none"})
            line = [100 * math.expm1(one.own.at(p)) for p in at]
            ax.plot(sizes, line, **{**looks[title], "marker": ""})
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set(xlabel="Parameters", ylabel="Loss over dense (%)" if ax is axes[0] else "")
        logarithmic(ax, "x")
    handles = [Line2D([], [], label=title, **look) for title, look in looks.items()]
    note = "Points: means over runs paired by seed, and their standard errors. Lines: the fit."
    return finish(figure, handles, [note])
