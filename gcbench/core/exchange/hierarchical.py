"""Dense inside a node, compressed between nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gcbench.core.codec import Codec, decoder_of
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.nodes import Nodes
from gcbench.core.compressor import (
    Aggregated,
    Grads,
    Properties,
    State,
    Step,
    flatten,
    sizes_of,
    unflatten,
)
from gcbench.core.fields import Checked, Count


@dataclass(frozen=True)
class Hierarchical(Checked):
    """Dense inside a node, compressed between nodes.

    The workers of a node average their gradients in fp32, and the nodes exchange codes of their
    means. With N nodes of g workers and v_i the gradient of worker i:

        u_k = (1/g) sum of v_i over node k;   m_k = encode(u_k)
        update = (1/N) sum over k of decode(m_k)

    All workers of a node make the same code, since they share the node's noise. Each sends 1/g of
    it to its peers in the other nodes, and passes on what it receives from them inside its node, so
    that every code is sent once between two nodes. With g = 1 this is a gather.

    A node's code has the error e_k = u_k - decode(m_k), which no single worker is responsible for.
    Worker i therefore counts as having sent v_i - e_k, whose mean over the node is decode(m_k).
    Error feedback then keeps beta h - alpha h + e_k: the residual is the same on all workers of a
    node, as for a single worker with their mean gradient.

    A worker sends the gradient in fp32 inside the node, 1/g of the node's code between nodes, and
    1/g of the other N - 1 nodes' codes inside the node.
    """

    codec: Codec
    workers_per_node: Count | None = None  # g; None: all workers of a host

    @property
    def properties(self) -> Properties:
        # Contractive for the node's mean, since only that is coded and kept as a residual.
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
        every_node = replace(step, workers=range(len(everyone[0])))
        decoder = decoder_of(self.codec, lambda: every_node.noise("codec", sizes, x.device))
        mean = decoder.decode_mean([m.unsqueeze(1) for m in everyone], segments)

        def sent() -> Grads:
            decoded = torch.zeros_like(means)
            self.codec.drawing(noise).decode_add(message, segments, decoded)
            errors = (means - decoded).repeat_interleave(x.shape[0] // means.shape[0], dim=0)
            return unflatten(x - errors, grads)

        return Aggregated(unflatten(mean, grads), sent, state)
