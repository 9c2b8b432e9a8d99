"""Reduce-scatters of codes: each worker keeps only its shard of the update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcbench.codecs.noise import Noise
from gcbench.comm.collectives import Comm
from gcbench.compressors.base import Aggregated, Compressor, Grads, Properties, State, Step
from gcbench.compressors.codec import Codec, Message, RaggedCodec
from gcbench.compressors.dense import Dense
from gcbench.compressors.exchange import GatherExchange, ScatterExchange, average_shards
from gcbench.compressors.wrappers import BucketsThroughGradient


@dataclass(frozen=True)
class ShardExchange:
    """Every worker averages all workers' codes of its shard and keeps the mean: a reduce-scatter.

    Worker j owns shard j. For the gradient of worker i:

        m_ij = encode(shard j of worker i);   update at worker j = (1/W) sum_i decode(m_ij)

    Takes one tensor `[w, W size]`, with one shard per worker. The update is `[w, size]`: unlike in
    other exchanges, it differs between workers. What was sent covers the whole gradient, and
    therefore so does the residual of error feedback around this exchange.

    A worker sends W - 1 coded shards, and receives as many.
    """

    codec: Codec

    @property
    def properties(self) -> Properties:
        return self.codec.properties._replace(scope="global", divisible=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        ((name, x),) = grads.items()
        mean, decode_sent = average_shards(self.codec, x, comm, step)

        def sent() -> Grads:
            return {name: decode_sent().view_as(x)}

        return Aggregated({name: mean}, sent, state)


@dataclass(frozen=True)
class Cast(Codec):
    """A codec that only casts values, to the type that they have on the wire."""

    dtype: torch.dtype

    @property
    def properties(self) -> Properties:
        return Dense.properties

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        return [x.to(self.dtype)]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        out += message[0]


def shard_exchange(compressor: Compressor) -> Compressor:
    """Return `compressor` with its exchange replaced by a reduce-scatter of the same codes.

    Raises ValueError if its messages do not consist of one code of equal length per shard.
    """
    if isinstance(compressor, BucketsThroughGradient):  # a group of parameters is one tensor anyway
        return shard_exchange(compressor.inner)
    if isinstance(compressor, Dense):
        return ShardExchange(Cast(getattr(torch, compressor.dtype)))
    if isinstance(compressor, GatherExchange) and not isinstance(compressor.codec, RaggedCodec):
        return ShardExchange(compressor.codec)
    if isinstance(compressor, ScatterExchange) and not compressor.code_means:
        return ShardExchange(compressor.codec)
    if not hasattr(compressor, "inner"):
        raise ValueError(
            "a reduction by shards needs exchange=gather or scatter, with messages of one length "
            "(code=fixed)"
        )
    wrapper: Any = compressor
    parts = {k: getattr(wrapper, k) for k in ("inner", "dense") if hasattr(wrapper, k)}
    return replace(wrapper, **{k: shard_exchange(part) for k, part in parts.items()})
