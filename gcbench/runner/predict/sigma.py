"""sigma: how many times shorter a method's step is than that of dense bf16 with overlap.

A step computes for a unit of time, and c is the time of the dense exchange, an all-reduce of the
whole gradient in bf16, in this unit: a number that everybody can measure. Links have no latency
here. Coding is that of a device's profile, in seconds a value, over the time in which the device
computes 6 operations a parameter for each of a worker's tokens in a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gcbench.core.conf import conf_directory
from gcbench.runner.network import Link, exchange_seconds
from gcbench.runner.predict.devices import Device
from gcbench.runner.predict.model import Cluster, Method, codec_seconds, exposed_seconds
from gcbench.runner.predict.subject import flops_of
from gcbench.runner.records.files import read_json

PER_TOKEN = 6  # operations a parameter, forward and backward
LARGE = 4_000_000  # values of a gradient whose coding per value is that of all larger ones
ALIKE = 1.5  # times the bits of a kept method that another may send to be like it
CLOSE = 0.01  # share by which a value may lie beyond a kept one
SAME = (
    "",
    "scatter",
)  # exchanges after which means are those of a run's own; scatter sends them whole
COUNTING = Cluster(Link(1), Link(1))  # on which an exchange takes as many seconds as it has bits


class Workload(NamedTuple):
    """A worker's part of a step: its tokens, its buckets and its computing."""

    tokens: int
    buckets: int  # of the dense gradient, exchanged as the backward pass fills them
    backward_share: float
    compute_seconds: float  # of a step, for each parameter


class Form(NamedTuple):
    """The bits and the coding of an exchange, for which a step waits."""

    bits: float  # over those of the dense exchange
    coding: float  # over the time of computing


class Cost(NamedTuple):
    """The cost of a method's step beside computing, for each exchange that it may use."""

    forms: Mapping[str, Form]  # the first is its own
    every: int
    in_buckets: bool

    def step(self, c: float, workload: Workload, any_exchange: bool = False) -> float:
        """Return the time of a mean step of the fastest exchange, in times of computing.

        It is one whose means are those of the runs, unless any will do.
        """
        buckets = workload.buckets if self.in_buckets and self.every == 1 else 1
        own = next(iter(self.forms))
        return min(
            1
            + (form.coding + exposed_seconds(c * form.bits, workload.backward_share, buckets))
            / self.every
            for exchange, form in self.forms.items()
            if any_exchange or exchange in (own, *SAME)
        )


def workload_on(device: Device, tokens: int, buckets: int) -> Workload:
    seconds = PER_TOKEN * tokens / flops_per_second(device)
    return Workload(tokens, buckets, device.backward_share, seconds)


def flops_per_second(device: Device) -> float:
    """Return the highest rate at which a device computes its models."""
    rates = [
        3 * flops_of(model) * batch / seconds
        for model, entry in device.models.items()
        for batch, seconds in [max(entry.seconds.items())]
    ]
    return max(rates)


def cost_of(forms: Mapping[str, Method], workers: int, device: Device, workload: Workload) -> Cost:
    """Return what a method with these exchanges waits for."""
    first = next(iter(forms.values()))
    return Cost(
        {exchange: _form(method, workers, device, workload) for exchange, method in forms.items()},
        first.every,
        first.in_buckets,
    )


def _form(method: Method, workers: int, device: Device, workload: Workload) -> Form:
    messages, network = method.messages(workers), COUNTING.network(workers)
    values = method.dense_bytes / 4
    dense = 2 * (workers - 1) / workers * 16 * values
    large = replace(method, codec=device.codec(method.family, LARGE))
    coding = codec_seconds(large.codec, messages, network) / LARGE
    return Form(exchange_seconds(messages, network) / dense, coding / workload.compute_seconds)


def bits_a_value(method: Method, workers: int) -> float:
    """Return the bits that a worker has for the others, a value of the gradient and step."""
    return sum(m.bits for m in method.messages(workers)) / (method.dense_bytes / 4) / method.every


def times_shorter(
    dense: Cost, one: Cost, c: float, workload: Workload, any_exchange: bool = False
) -> float:
    """Return sigma."""
    return dense.step(c, workload) / one.step(c, workload, any_exchange)


class KeptRho:
    """rho of methods on a grid, as the map of a ladder keeps it, and between its places."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.axes = [content[name] for name in ("parameters", "workers", "lengths")]
        self.methods = content["methods"]
        self.dense = content["dense"]["family"]

    @property
    def covers(self) -> str:
        """Return the sizes, workers and lengths of the grid."""
        sizes, workers, lengths = ((axis[0], axis[-1]) for axis in self.axes)
        return (
            f"{sizes[0]:,.0f} to {sizes[1]:,.0f} parameters, {workers[0]} to {workers[1]} workers, "
            f"T = {lengths[0]:g} to {lengths[1]:g}"
        )

    def of(self, method: Method, workers: int, length: float) -> Bounded | None:
        """Return rho of a kept method that sends about as many bits; None: not covered."""
        if method.family == self.dense and method.every == 1:
            return Bounded("", 1.0, 1.0, 1.0)
        bits = bits_a_value(method, max(2, workers))
        same = [
            (abs(math.log(one["bits"] / bits)), one)
            for one in self.methods
            if (one["family"], one["every"]) == (method.family, method.every)
        ]
        apart, nearest = min(same, key=lambda pair: pair[0], default=(math.inf, None))
        if nearest is None or apart > math.log(ALIKE):
            return None
        corners = [
            _corners(a, at)
            for a, at in zip(self.axes, (method.dense_bytes / 4, workers, length), strict=True)
        ]
        found = [
            (math.prod(share for _, share in where), nearest["rho"][i][j][k])
            for where in product(*corners)
            for (i, _), (j, _), (k, _) in [where]
        ]
        if not found or not all(rho and rho[0] for _, rho in found):
            return None
        value = math.exp(sum(share * math.log(rho[0]) for share, rho in found))
        return Bounded(
            nearest["label"],
            value,
            min(rho[1] or 0.0 for _, rho in found),
            max(rho[2] or math.inf for _, rho in found),
        )


def _corners(axis: Sequence[float], at: float) -> list[tuple[int, float]]:
    """Return the places around a value, and their shares in it; none if it is beyond the ends."""
    if not axis[0] * (1 - CLOSE) <= at <= axis[-1] * (1 + CLOSE):
        return []
    place = float(np.interp(math.log(at), np.log(axis), range(len(axis))))
    low, share = int(place), place % 1
    return [(low, 1 - share), *([(low + 1, share)] if share else [])]


def read_rho(folders: Sequence[str]) -> KeptRho | None:
    """Return the rho kept below these folders, else gcbench's own; None if there is none."""
    below = (path for folder in folders for path in sorted(Path(folder).rglob("ladder/map.json")))
    conf = conf_directory()  # in a checkout, and in an installed package
    ours = (conf.parent / "outputs/figures/modern/ladder/map.json", conf / "ladder.json")
    path = next(below, None) or next((path for path in ours if path.is_file()), None)
    return KeptRho(read_json(path)) if path else None


class Bounded(NamedTuple):
    """A speed-up with its interval; None: not known, but for the bounds."""

    label: str
    value: float | None
    low: float
    high: float


LEAST = 1.05  # speed-up below which a method is not worth a change
BELOW, OVERLAP, UNCOVERED = f"below {LEAST:g}", "intervals overlap", "not covered"
SOME = "one pays, unsure which"  # intervals overlap, but with those of other methods


class Verdict(NamedTuple):
    """The best method of a place: its speed-up over dense bf16 with overlap, or why none is."""

    label: str
    value: float
    low: float
    high: float
    why: str = ""
    uncovered: int = 0  # other methods of which nothing is known there


def is_surely_above(one: Bounded, other: Bounded) -> bool:
    """Return whether the 95 % interval of the ratio of two speed-ups lies above 1.

    Its logarithm has the root of the sum of the squares of both halves that face each other, which
    takes the two for independent: 2 [1.8, 2.2] is surely above 1.7 [1.5, 1.9].
    """
    if one.value is None or other.value is None or not one.low > 0:
        return one.low > other.high
    below, above = math.log(one.value / one.low), math.log(other.high / other.value)
    return math.log(one.value / other.value) > math.hypot(below, above)


def judge(dense: str, others: Sequence[Bounded]) -> Verdict:
    """Return the method with the largest speed-up, if that is surely the largest of those known."""
    known = [one for one in others if one.value is not None or one.high < float("inf")]
    # Only bounded, as rho where it is at least 1: such a method may pay, and nothing says so.
    may_pay = any(one.value is None and one.high >= LEAST for one in known)
    if not known or (may_pay and all(one.value is None for one in known)):
        return Verdict(dense, 1.0, 1.0, 1.0, UNCOVERED, len(others))
    whole = Bounded(dense, 1.0, 1.0, 1.0)
    best = max([whole, *known], key=lambda one: one.value or 0.0)
    is_sure = all(is_surely_above(best, one) for one in (whole, *known) if one is not best)
    value = best.value or 0.0
    why = ""
    if value < LEAST:
        why = OVERLAP if may_pay else BELOW
    elif not is_sure:
        why = SOME if max(one.low for one in known) >= LEAST else OVERLAP
    return Verdict(best.label, value, best.low, best.high, why, len(others) - len(known))
