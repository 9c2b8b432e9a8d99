"""From where on a method pays: its step is shorter than the dense one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gcbench.predict.model import Cluster, Compute, Method, Prediction, predict

SLOWEST, FASTEST = 1e6, 1e13  # bits a second that are tried
HALVINGS = 24  # of that range on a logarithmic scale: to 1 part in a million


class Threshold(NamedTuple):
    """Of the link between nodes. `below` and `above` are None where there is no such bound; `never` has neither."""

    below: float | None = None  # bits a second
    above: float | None = None
    never: bool = False


class Answer(NamedTuple):
    method: Method
    thresholds: list[Threshold]  # by the number of workers
    predictions: list[Prediction]  # on the network that was asked for
    pays: list[bool]  # there


def threshold(
    method: Method,
    dense: Method,
    workers: int,
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
) -> Threshold:
    """The bandwidth at which the two steps are equally long; there is one at most."""

    def pays(rate: float) -> bool:
        at = cluster.at(rate)
        ours, theirs = (
            predict(m, workers, at, compute, overlap).step_seconds for m in (method, dense)
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


def answers(
    methods: Sequence[Method],
    dense: Method,
    workers: Sequence[int],
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
) -> list[Answer]:
    base = {w: predict(dense, w, cluster, compute, overlap).step_seconds for w in workers}
    found = []
    for method in methods:
        here = [predict(method, w, cluster, compute, overlap) for w in workers]
        limits = [threshold(method, dense, w, cluster, compute, overlap) for w in workers]
        found.append(Answer(method, limits, here, [p.step_seconds < base[p.workers] for p in here]))
    return found
