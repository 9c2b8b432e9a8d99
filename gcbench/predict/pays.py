"""Where a method pays, that is, where its step is shorter than the dense one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from gcbench.predict.model import Cluster, Compute, Method, Prediction, predict

SLOWEST, FASTEST = 1e6, 1e13  # the rates that are tried, in bits per second
HALVINGS = 24  # of that range on a logarithmic scale, for a precision of 1 part in a million


class Threshold(NamedTuple):
    """The rates between nodes at which a method pays: without bounds, always or `never`."""

    below: float | None = None  # bits per second
    above: float | None = None
    never: bool = False


class MethodVerdict(NamedTuple):
    """A method's steps on every network, against dense ones, and the rates at which it pays."""

    method: Method
    thresholds: list[Threshold]  # by number of workers, with the first network's latency
    speedups: dict[str, list[float]]  # dense over own step time, by network and number of workers
    predictions: dict[str, list[Prediction]]  # by network and number of workers

    @property
    def mean_speedup(self) -> float:
        """Return the geometric mean over networks and numbers of workers."""
        return geometric_mean(x for row in self.speedups.values() for x in row)


def find_threshold(
    method: Method,
    dense: Method,
    workers: int,
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
) -> Threshold:
    """Return the rates at which `method` has a shorter step than `dense`.

    There is at most one rate at which their steps take equally long, which is found by bisection.
    """

    def pays(rate: float) -> bool:
        at_rate = cluster.at(rate)
        ours, theirs = (
            predict(m, workers, at_rate, compute, overlap).step_seconds for m in (method, dense)
        )
        return ours < theirs

    slow, fast = pays(SLOWEST), pays(FASTEST)
    if slow == fast:
        return Threshold(never=not slow)
    low, high = SLOWEST, FASTEST
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pays(middle) == slow else (low, middle)
    return Threshold(below=low) if slow else Threshold(above=high)


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
        thresholds = [find_threshold(method, dense, w, first, compute, overlap) for w in workers]
        speedups = {
            name: [d.step_seconds / p.step_seconds for d, p in zip(bounds[name], row, strict=True)]
            for name, row in predictions.items()
        }
        verdicts.append(MethodVerdict(method, thresholds, speedups, predictions))
    return sorted(verdicts, key=lambda verdict: -verdict.mean_speedup)
