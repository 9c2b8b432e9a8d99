"""Where a method pays, that is, where its step is shorter than the dense one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import geometric_mean
from typing import NamedTuple

from gcbench.predict.model import Cluster, Compute, Method, Prediction, predict

SLOWEST, FASTEST = 1e6, 1e13  # the rates that are tried, in bits per second
TRIED = [SLOWEST * 10 ** (i / 4) for i in range(28)] + [FASTEST]
HALVINGS = 20  # between two of these on a logarithmic scale, for a precision of 1 in a million


class RateRange(NamedTuple):
    """The bounds, in bits per second, between which a method pays."""

    low: float  # SLOWEST: there is none
    high: float  # FASTEST: there is none


class MethodVerdict(NamedTuple):
    """A method's steps on every network, against dense ones, and the rates at which it pays."""

    method: Method
    # By number of workers, with the first network's latency.
    paying: list[list[RateRange]]
    speedups: dict[str, list[float]]  # dense over own step time, by network and number of workers
    predictions: dict[str, list[Prediction]]  # by network and number of workers

    @property
    def mean_speedup(self) -> float:
        """Return the geometric mean over networks and numbers of workers."""
        return geometric_mean(x for row in self.speedups.values() for x in row)


def find_paying(
    method: Method,
    dense: Method,
    workers: int,
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
) -> list[RateRange]:
    """Return the ranges of rates between nodes at which `method` has a shorter step than `dense`.

    Without overlap there is at most one rate at which their steps take equally long. With it there
    can be several, as computation hides a part of each exchange. They are found by bisection
    between the tried rates.
    """

    def pays(rate: float) -> bool:
        at_rate = cluster.at(rate)
        ours, theirs = (
            predict(m, workers, at_rate, compute, overlap).step_seconds for m in (method, dense)
        )
        return ours < theirs

    paying = [pays(rate) for rate in TRIED]
    bounds = [SLOWEST] if paying[0] else []
    for (slow, fast), (before, after) in zip(pairwise(TRIED), pairwise(paying), strict=True):
        if before != after:
            low, high = slow, fast
            for _ in range(HALVINGS):
                middle = (low * high) ** 0.5
                low, high = (middle, high) if pays(middle) == before else (low, middle)
            bounds.append(low)
    bounds += [FASTEST] if paying[-1] else []
    return [RateRange(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=True)]


def find_verdicts(
    methods: Sequence[Method],
    dense: Method,
    workers: Sequence[int],
    clusters: Mapping[str, Cluster],
    compute: Compute,
    overlap: bool = False,
) -> list[MethodVerdict]:
    """Return a verdict on every method, the fastest first; `clusters` has the networks as keys."""
    first = next(iter(clusters.values()))

    def steps(method: Method) -> dict[str, list[Prediction]]:
        return {
            name: [predict(method, w, cluster, compute, overlap) for w in workers]
            for name, cluster in clusters.items()
        }

    bounds = steps(dense)
    verdicts = []
    for method in methods:
        predictions = steps(method)
        paying = [find_paying(method, dense, w, first, compute, overlap) for w in workers]
        speedups = {
            name: [d.step_seconds / p.step_seconds for d, p in zip(bounds[name], row, strict=True)]
            for name, row in predictions.items()
        }
        verdicts.append(MethodVerdict(method, paying, speedups, predictions))
    return sorted(verdicts, key=lambda verdict: -verdict.mean_speedup)
