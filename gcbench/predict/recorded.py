"""The time that a run's exchanges would take on other links, by the cost model."""

from __future__ import annotations

import math
from typing import cast

from gcbench.comm.network import Collective, Level, Link, Network
from gcbench.predict.links import read_link
from gcbench.predict.model import Message, exchange_seconds
from gcbench.records.schema import Result

INSTANT = Link(math.inf)


def seconds_on(result: Result, network: str) -> float:
    """Return the seconds that a mean step's exchange takes between hosts of one worker each.

    A hierarchical method keeps its nodes, and exchanges within a node take no time.
    """
    link = read_link("network", network)
    return exchange_seconds(messages_of(result), network_of(result, link))


def messages_of(result: Result) -> list[Message]:
    """Return the collectives of a mean step."""
    steps = result.steps or 1
    return [
        Message(
            cast(Level, c.level),
            cast(Collective, c.collective),
            c.messages / steps,
            c.sent_bits / steps,
        )
        for c in result.collectives
        if c.messages and c.workers > 1
    ]


def network_of(result: Result, between: Link) -> Network:
    """Return the network of hosts of one worker, or of a hierarchical method's nodes."""
    inside = [c.workers for c in result.collectives if c.level == "inside"]
    return Network(result.workers or 1, inside[0] if inside else 1, INSTANT, between)
