"""The seconds that collectives take on links, by the algorithms of `gcbench.core.comm.meter`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcbench.core.comm.meter import Collective, Level, Message


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


def exchange_seconds(messages: Sequence[Message], network: Network) -> float:
    """Return the seconds of consecutive collectives."""
    return sum(
        m.number * network.level(m.level).seconds(m.collective, m.bits / m.number) for m in messages
    )
