"""The baselines: an all-reduce of the gradients in full or in half precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from gcbench.comm.collectives import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, cast_each
from gcbench.settings.fields import Checked

Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Dense(Checked):
    """An all-reduce of the gradients: the baselines in full and in half precision.

    The mean of the gradients by one all-reduce, in `dtype` on the wire: 32 or 16 bits per value.

    In half precision, gradients are divided by W before they are summed, so that no sum of finite
    gradients overflows; what a worker sent is its gradient rounded to that type.

    No paper's methods: they are those of torch's DistributedDataParallel and its fp16_compress_hook
    and bf16_compress_hook. Differences from these: none known.
    """

    dtype: Dtype = "float32"
    properties: ClassVar[Properties] = Properties(
        exact=True, contractive=True, mean_linear=True, divisible=True
    )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        rows = list(grads.values())
        if self.dtype == "float32":
            means = comm.mean(rows)
        else:
            rows = cast_each(rows, getattr(torch, self.dtype))
            means = cast_each(comm.mean(rows), torch.float32)
        update = dict(zip(grads, means, strict=True))
        return Aggregated(
            update, lambda: {k: r.float() for k, r in zip(grads, rows, strict=True)}, state
        )
