"""How codes travel: any codec becomes a compressor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gcbench.codecs.noise import Noise
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, flatten, sizes_of, unflatten

Message = list[Tensor]
"""What one encode sends, every tensor `[w, ...]`."""


class Codec(Protocol):
    """A pure code for rows of values; `segments` are the sizes of the tensors that a row holds end to end."""

    @property
    def properties(self) -> Properties: ...

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        """`[w, n]` to a message."""

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        """Add the values of a message of r rows to `out` `[r, n]`."""


@dataclass(frozen=True)
class Gathered:
    """Every worker gets the codes of all (all-gather) and sums what they decode to, in worker order.

    The order makes replicas, virtual workers and real ones equal to the bit. Receives (W - 1) messages a step.
    """

    codec: Codec

    @property
    def properties(self) -> Properties:
        return self.codec.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        x = flatten(grads)
        sizes = sizes_of(grads)
        segments = tuple(sizes.values())
        message = self.codec.encode(x, segments, step.noise("codec", sizes, x.device))
        everyone = comm.gather(message)
        total = x.new_zeros(1, x.shape[1])
        for k in range(comm.workers):
            self.codec.decode_add([m[k : k + 1] for m in everyone], segments, total)

        def sent() -> Grads:
            own = torch.zeros_like(x)
            self.codec.decode_add(message, segments, own)
            return unflatten(own, grads)

        return Aggregated(unflatten(total.div_(comm.workers), grads), sent, state)
