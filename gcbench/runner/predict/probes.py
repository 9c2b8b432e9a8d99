"""Seconds of collectives as they were timed on a process group, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gcbench.core.comm.meter import Collective, Message
from gcbench.runner.network import Link, Network, exchange_seconds

Probes = Mapping[Collective, Mapping[int, float]]
"""Seconds of a collective by the bytes that each process contributes."""


def link_of(probes: Probes, workers: int) -> Link:
    """Return the link with which the cost model has the seconds of the probed all-reduces."""
    sizes = probes["all_reduce"]
    (small, first), (large, last) = min(sizes.items()), max(sizes.items())
    others = 2 * (workers - 1)
    latency = first / others
    bits = 8 * (large - small) / workers * others
    return Link(bits / max(last - first, 1e-9), latency)


def seconds_of(
    messages: Sequence[Message], probes: Probes, network: Network, share: float = 1
) -> float:
    """Return the seconds of consecutive collectives, with a share of their bits, as probed.

    Collectives that were not probed take those of the cost model.
    """
    total = 0.0
    for message in messages:
        sizes = probes.get(message.collective)
        if sizes is None or message.level != "all":
            part = message._replace(bits=share * message.bits)
            total += exchange_seconds([part], network)
        else:
            each = share * message.bits / message.number / 8
            total += message.number * seconds_at(sizes, each)
    return total


def seconds_at(seconds: Mapping[int, float], size: float) -> float:
    """Return the seconds at a size, on lines between those that are known and beyond them."""
    sizes = sorted(seconds)
    if size > sizes[-1]:
        low, high = sizes[-2:] if len(sizes) > 1 else (0, sizes[-1])
        slope = (seconds[high] - seconds.get(low, 0.0)) / (high - low)
        return seconds[high] + max(0.0, slope) * (size - high)
    return float(np.interp(size, sizes, [seconds[n] for n in sizes]))
