"""The cost of collectives from sizes alone: the bits that they move and the seconds they take.

A payload is what one worker has for the others, as the meter counts it: what it puts into a sum or
a gather, of an all-to-all the parts that are not its own. Which algorithm runs is stated:

    all_reduce       a ring that passes W-ths of the message on, first adding them up, then handing
                     the sums around
    all_gather       a ring that passes whole messages on
    ragged_gather    every worker sends its message, of a size of its own, to every other one (on
                     gloo a ring passes them on: as many bits, and no slower)
    all_to_all       every worker sends every other one its part

gloo and NCCL run them so, on gloo with gathers and all-to-alls that we send ourselves;
NCCL, which may take trees for small sums, moves as many bits with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Collective = Literal["all_reduce", "all_gather", "ragged_gather", "all_to_all"]
Level = Literal["all", "inside", "between"]  # all workers; those of a node; one of every node


def wire_bits(collective: Collective, payload_bits: float, workers: int) -> float:
    """Return the bits that a worker sends, or hands on for others, until all have their result.

    They are the mean over workers where these differ.
    """
    if collective == "all_reduce":
        return 2 * (workers - 1) * payload_bits / workers
    if collective in ("all_gather", "ragged_gather"):
        return (workers - 1) * payload_bits
    return payload_bits if workers > 1 else 0


@dataclass(frozen=True)
class Link:
    """A link that carries `bits_per_second` of payload in either direction at the same time.

    The headers of TCP leave 95 % of an Ethernet's rate.
    """

    bits_per_second: float
    latency_seconds: float = 0.0

    def seconds(self, bits: float, messages: float = 1) -> float:
        return messages * self.latency_seconds + bits / self.bits_per_second


@dataclass(frozen=True)
class Network:
    """Nodes of `workers_per_node` workers.

    Every worker has a link to the others of its node, all of them share the node's link to the
    other nodes.
    """

    workers: int
    workers_per_node: int
    inside: Link
    between: Link

    @property
    def nodes(self) -> int:
        return self.workers // self.workers_per_node

    def level(self, level: Level) -> Network:
        """Return the network as one level of a hierarchical exchange uses it.

        That is inside every node, or among the i-th workers of all nodes while the others of the
        node do the same.
        """
        size = self.workers_per_node
        if level == "inside":
            return Network(size, size, self.inside, self.between)
        if level == "between":
            share = Link(self.between.bits_per_second / size, self.between.latency_seconds)
            return Network(self.nodes, 1, self.inside, share)
        return self

    def seconds(self, collective: Collective, bits: float) -> float:
        """Return the seconds of one collective to which every worker brings a payload of `bits`."""
        others = self.workers - 1
        if collective == "all_reduce":
            return 2 * others * self._ring_round(bits / self.workers)
        if collective == "all_gather":
            return others * self._ring_round(bits)
        return self.point_to_point_seconds(
            [bits / max(others, 1) if collective == "all_to_all" else bits] * self.workers
        )

    def _ring_round(self, bits: float) -> float:
        """Return the seconds in which all pass a message on at once.

        The ring goes from node to node, so that one message leaves each and one arrives.
        """
        inside = self.inside.seconds(bits) if self.workers_per_node > 1 else 0.0
        return max(inside, self.between.seconds(bits)) if self.nodes > 1 else inside

    def point_to_point_seconds(self, bits: Sequence[float]) -> float:
        """Return the seconds in which worker i sends `bits[i]` to each of the others.

        Who sends most sets the time, as nobody receives as much. Both levels work at once.
        """
        size, strangers = self.workers_per_node, self.workers - self.workers_per_node
        by_node = [sum(bits[i : i + size]) for i in range(0, self.workers, size)]
        inside = self.inside.seconds((size - 1) * max(bits), size - 1)
        return max(inside, self.between.seconds(strangers * max(by_node), strangers))
