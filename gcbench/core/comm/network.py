"""The cost of collectives from sizes alone: the bits that they move and the seconds they take.

A payload is what one worker has for the others, as the meter counts it: what it contributes to a
sum or a gather, and in an all-to-all the parts for other workers. The algorithms are:

    all_reduce       a ring that passes on W-ths of the message, first to add them up, then to
                     distribute the sums
    all_gather       a ring that passes on whole messages
    ragged_gather    every worker sends its message, whose size is its own, to every other worker
                     (on gloo a ring passes them on: as many bits, and no slower)
    all_to_all       every worker sends every other worker its part
    ring_hop         every worker passes one message on to its neighbor in a ring

gloo and NCCL run these; on gloo, we send gathers and all-to-alls ourselves. NCCL may use trees for
small sums, which move as many bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Collective = Literal["all_reduce", "all_gather", "ragged_gather", "all_to_all", "ring_hop"]
Level = Literal["all", "inside", "between"]  # all workers; those of a node; one per node


def wire_bits(collective: Collective, payload_bits: float, workers: int) -> float:
    """Return the bits that a worker sends, or passes on for others, until all have their result.

    It receives as many. Where workers differ, it is their mean.
    """
    if collective == "all_reduce":
        return 2 * (workers - 1) * payload_bits / workers
    if collective in ("all_gather", "ragged_gather"):
        return (workers - 1) * payload_bits
    return payload_bits if workers > 1 else 0


@dataclass(frozen=True)
class Link:
    """A link that carries `bits_per_second` of payload in both directions at the same time.

    TCP's headers leave 95 % of the rate of Ethernet.
    """

    bits_per_second: float
    latency_seconds: float = 0.0

    def seconds(self, bits: float, messages: float = 1) -> float:
        return messages * self.latency_seconds + bits / self.bits_per_second


@dataclass(frozen=True)
class Network:
    """Nodes of `workers_per_node` workers.

    Every worker has a link to the others of its node; all of them share the node's link to the
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

        `inside` is a single node. `between` connects the i-th workers of all nodes, while the other
        workers of each node use the same links.
        """
        size = self.workers_per_node
        if level == "inside":
            return Network(size, size, self.inside, self.between)
        if level == "between":
            share = Link(self.between.bits_per_second / size, self.between.latency_seconds)
            return Network(self.nodes, 1, self.inside, share)
        return self

    def seconds(self, collective: Collective, bits: float) -> float:
        """Return the seconds of one collective, where every worker has a payload of `bits`."""
        others = self.workers - 1
        if collective == "all_reduce":
            return 2 * others * self._ring_round(bits / self.workers)
        if collective == "all_gather":
            return others * self._ring_round(bits)
        if collective == "ring_hop":
            return self._ring_round(bits)
        return self.point_to_point_seconds(
            [bits / max(others, 1) if collective == "all_to_all" else bits] * self.workers
        )

    def _ring_round(self, bits: float) -> float:
        """Return the seconds in which all workers pass on a message at the same time.

        The ring goes from node to node, so that one message leaves each node and one arrives.
        """
        inside = self.inside.seconds(bits) if self.workers_per_node > 1 else 0.0
        return max(inside, self.between.seconds(bits)) if self.nodes > 1 else inside

    def point_to_point_seconds(self, bits: Sequence[float]) -> float:
        """Return the seconds in which worker i sends `bits[i]` to each of the others.

        The worker that sends most sets the time, as none receives more. Both levels work at the
        same time.
        """
        size, strangers = self.workers_per_node, self.workers - self.workers_per_node
        by_node = [sum(bits[i : i + size]) for i in range(0, self.workers, size)]
        inside = self.inside.seconds((size - 1) * max(bits), size - 1)
        return max(inside, self.between.seconds(strangers * max(by_node), strangers))


class Message(NamedTuple):
    """The collectives of one kind in a step."""

    level: Level
    collective: Collective
    number: float
    bits: float  # payload per worker, in all of them together


def exchange_seconds(messages: Sequence[Message], network: Network) -> float:
    """Return the seconds of consecutive collectives."""
    return sum(
        m.number * network.level(m.level).seconds(m.collective, m.bits / m.number) for m in messages
    )
