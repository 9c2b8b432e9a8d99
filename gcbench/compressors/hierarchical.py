"""Dense inside a node, compressed between nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gcbench.comm import Comm, Nodes
from gcbench.compressors.base import (
    Aggregated,
    Grads,
    Properties,
    State,
    Step,
    flatten,
    sizes_of,
    unflatten,
)
from gcbench.compressors.codec import Codec
from gcbench.knobs import Checked
from gcbench.method_settings import WorkersPerNode


@dataclass(frozen=True)
class Hierarchical(Checked):
    """Dense inside a node, compressed between nodes.

    The workers of a node average their gradients in fp32, and the nodes exchange codes of their
    means. With N nodes of g workers and v_i the gradient of worker i:

        u_k = (1/g) sum of v_i over node k;   m_k = encode(u_k)
        update = (1/N) sum over k of decode(m_k)

    All workers of a node make the same code, as its noise is the node's. Each sends one g-th of it
    to its peers in the other nodes, and what it gets from them to the others of its node, so that
    every code travels once between two nodes. With g = 1 it is a gather.

    A node's code misses e_k = u_k - decode(m_k), whoever's gradient that came from. What worker i
    sent is therefore v_i - e_k, whose mean over the node is decode(m_k): error feedback then keeps
    beta h - alpha h + e_k, the same residual on all workers of a node, as a single worker with
    their mean gradient would.

    Sends per worker: the gradient in fp32 inside the node, a g-th of the node's code between nodes,
    and a g-th of the other N - 1 nodes' codes inside.
    """

    codec: Codec
    workers_per_node: WorkersPerNode | None = None  # g; None: all workers of a host

    @property
    def properties(self) -> Properties:
        # Contractive for the node's mean, which is all that is coded and remembered.
        inner = self.codec.properties
        return Properties(unbiased=inner.unbiased, contractive=inner.contractive, scope=inner.scope)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        nodes = Nodes.of(comm, self.workers_per_node)
        x, sizes = flatten(grads), sizes_of(grads)
        segments = tuple(sizes.values())
        means = nodes.mean([x])[0]
        noise = replace(step, workers=nodes.local).noise("codec", sizes, x.device)
        message = self.codec.encode(means, segments, noise)
        everyone = nodes.gather(message)
        mean = self.codec.decode_mean([m.unsqueeze(1) for m in everyone], segments)

        def sent() -> Grads:
            decoded = torch.zeros_like(means)
            self.codec.decode_add(message, segments, decoded)
            errors = (means - decoded).repeat_interleave(x.shape[0] // means.shape[0], dim=0)
            return unflatten(x - errors, grads)

        return Aggregated(unflatten(mean, grads), sent, state)
