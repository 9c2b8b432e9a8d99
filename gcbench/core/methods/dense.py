"""The baselines: an all-reduce of the gradients in full or in half precision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.floats import FORMATS, to_float_codes
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.noise import Draws, Noise
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step, cast_each
from gcbench.core.exchange.gather import ScatterExchange
from gcbench.core.exchange.ring import RingExchange
from gcbench.core.fields import Checked, Neutral

Dtype = Literal["float32", "float16", "bfloat16"]

MEAN = Properties(exact=True, contractive=True, mean_linear=True, divisible=True)


@dataclass(frozen=True)
class Dense(Checked):
    """The mean of the gradients in full or in half precision: the baselines.

    With `accumulate=wire`, the mean by one all-reduce, in `dtype` on the wire: 32 or 16 bits per
    value. In half precision, gradients are divided by W before they are summed, so that no sum of
    finite gradients overflows; what a worker sent is its gradient rounded to that type. Every hop
    of the all-reduce rounds the sum. For chunk c of a ring of W workers, with round to `dtype`:

        s = round(round(g_(c-1)) / W);   s <- round(s + round(round(g_i) / W)) for i = c - 2, ..., c

    Virtual workers add as gloo's ring does, bit for bit. With `rounding=stochastic` the ring is our
    own (`RingExchange`), as no library's rounds by chance: s <- round(s + g_i / W).

    With `accumulate=fp32`, gradients are cast, shards of them are averaged in fp32 by their owners,
    and the means are cast for the way back:

        update = round((1/W) sum_i round(g_i))

    It puts as many bits on the wire. The error of `wire` grows as sqrt(W), as its W - 1 roundings
    are those of growing sums; that of `fp32` does not grow.

    No paper's methods: `wire` is torch's DistributedDataParallel and its fp16_compress_hook and
    bf16_compress_hook; `fp32` is what Megatron-LM does by `reduce_scatter_with_fp32_accumulation`,
    and NCCL's symmetric kernels for bfloat16. Differences from these: none known; NCCL may add in a
    tree, whose errors are smaller than a ring's.
    """

    dtype: Dtype = "float32"
    accumulate: Annotated[Literal["wire", "fp32"], Neutral("wire")] = "wire"
    """where half-precision gradients are added: in the type on the wire, as all-reduces do, or in
    fp32 by the owners of shards, with one more rounding for the way back"""
    rounding: Annotated[Literal["nearest", "stochastic"], Neutral("nearest")] = "nearest"

    properties: ClassVar[Properties] = MEAN

    @property
    def is_one_all_reduce(self) -> bool:
        """Return whether a step is one all-reduce of all values, in `dtype`."""
        plain = self.accumulate == "wire" and self.rounding == "nearest"
        return self.dtype == "float32" or plain

    @cached_property
    def cast(self) -> Cast:
        """The codec of what is on the wire."""
        return Cast(self.dtype, self.rounding)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if self.dtype != "float32" and self.accumulate == "fp32":
            shards = ScatterExchange(self.cast, code_means=True, residual="none")
            return shards.aggregate(grads, state, comm, step)
        if self.dtype != "float32" and self.rounding == "stochastic":
            return RingExchange(self.cast).aggregate(grads, state, comm, step)
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


@dataclass(frozen=True)
class Cast(Codec):
    """A codec that only casts values, to the type that they have on the wire.

    Rounding up or down by chance adds random bits below the last one that stays and cuts there, as
    torchcomms' collectives do, so that E[cast(t)] = t.
    """

    dtype: Dtype
    rounding: Literal["nearest", "stochastic"] = "nearest"

    @property
    def properties(self) -> Properties:
        return MEAN._replace(exact=False, unbiased=self.rounding == "stochastic")

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.rounding == "stochastic":
            return [_round_by_chance(x.contiguous(), noise.of(), self.dtype).view(dtype)]
        return [x.to(dtype)]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        out += message[0]


@kernel
def _round_by_chance(x: Tensor, draws: Draws, dtype: Dtype) -> Tensor:
    """Return the bits, int16, of values rounded up or down by chance."""
    return to_float_codes(x, FORMATS[dtype], draws.words(x.shape[-1])).to(torch.int16)
