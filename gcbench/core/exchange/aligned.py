"""Buckets that hold whole receptive fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step, aggregate_parts
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.entropy_coded import apply_code
from gcbench.core.methods.matrices import is_convolution


@dataclass(frozen=True)
class Aligned:
    """Buckets that hold whole receptive fields.

    Tensors are grouped by their bucket size d': the largest multiple of their receptive field that
    is at most `bucket_size`, and at least one field:

        d' = max(1, floor(d / f)) f    for a field of f values

    so that "no receptive field is split across two buckets" (QSGD, section 5). The field of a
    convolution `[out, in, height, width]` is height x width, the weights of one filter for one
    input channel; that of other tensors is one value. Each group is sent in a separate message: one
    for each filter size in the model.
    """

    codec: Bucketed
    code: str = "fixed"

    @property
    def properties(self) -> Properties:
        # A field larger than `bucket_size` is one bucket, so that buckets can have any size, as
        # those of whole tensors have.
        return replace(self.codec, per_layer=True).properties

    @property
    def analytic_bits_per_value(self) -> float | None:
        coded: Any = apply_code(self.codec, self.code)
        return getattr(coded, "analytic_bits_per_value", None)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        groups: dict[int, Grads] = {}
        for name, g in grads.items():
            groups.setdefault(self.bucket_size(g), {})[name] = g
        parts = [
            (GatherExchange(apply_code(replace(self.codec, bucket_size=size), self.code)), group)
            for size, group in groups.items()
        ]
        return aggregate_parts(parts, grads, state, comm, step)

    def bucket_size(self, g: Tensor) -> int:
        """Return the bucket size d' for a gradient `[w, ...]`."""
        field = g[0, 0, 0].numel() if is_convolution(g.shape[1:]) else 1
        return max(1, self.codec.bucket_size // field) * field
