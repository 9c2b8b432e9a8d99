"""Where a method pays: its step is shorter than the dense one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gcbench.predict.model import Cluster, Compute, Method, Prediction, predict

SLOWEST, FASTEST = 1e6, 1e13  # bits a second that are tried
HALVINGS = 24  # of that range on a logarithmic scale: to 1 part in a million


class Threshold(NamedTuple):
    """The rates between nodes at which a method pays; with no bound always, or `never`."""

    below: float | None = None  # bits a second
    above: float | None = None
    never: bool = False


class Answer(NamedTuple):
    """The numbers of workers for which a method pays."""

    method: Method
    thresholds: list[Threshold]
    predictions: list[Prediction]  # on the network that was asked for
    pays: list[bool]  # on that network


def find_threshold(
    method: Method,
    dense: Method,
    workers: int,
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
) -> Threshold:
    """Return the rate at which the two steps are equally long; there is one at most."""

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


def find_answers(
    methods: Sequence[Method],
    dense: Method,
    workers: Sequence[int],
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
) -> list[Answer]:
    """Return an answer for every method."""
    bounds = {w: predict(dense, w, cluster, compute, overlap).step_seconds for w in workers}
    answers = []
    for method in methods:
        predictions = [predict(method, w, cluster, compute, overlap) for w in workers]
        thresholds = [find_threshold(method, dense, w, cluster, compute, overlap) for w in workers]
        pays = [p.step_seconds < bounds[p.workers] for p in predictions]
        answers.append(Answer(method, thresholds, predictions, pays))
    return answers
