"""A reduce-scatter of codes: every worker keeps the mean of its shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gcbench.core.codec import Codec, RaggedCodec
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Compressor, Grads, Properties, State, Step
from gcbench.core.exchange.gather import GatherExchange, ScatterExchange, average_shards
from gcbench.core.exchange.ring import RingExchange, RingShards
from gcbench.core.methods.dense import Dense
from gcbench.core.wrappers.wrappers import BucketsThroughGradient, Rotated


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


def shard_exchange(compressor: Compressor) -> Compressor:
    """Return `compressor` with its exchange replaced by a reduce-scatter of the same codes.

    Raises ValueError if its messages do not consist of one code of equal length per shard.
    """
    if isinstance(compressor, BucketsThroughGradient):  # a group of parameters is one tensor anyway
        return shard_exchange(compressor.inner)
    if isinstance(compressor, Dense):
        in_ring = compressor.dtype != "float32" and compressor.accumulate == "wire"
        return (RingShards if in_ring else ShardExchange)(compressor.cast)
    if isinstance(compressor, RingExchange):
        return RingShards(compressor.codec)
    if isinstance(compressor, GatherExchange) and not isinstance(compressor.codec, RaggedCodec):
        return ShardExchange(compressor.codec)
    if isinstance(compressor, ScatterExchange) and not compressor.code_means:
        return ShardExchange(compressor.codec)
    if isinstance(compressor, Rotated):
        raise ValueError(
            "rotate=hadamard turns whole tensors, and a reduction is by shards; type rotate=none, "
            "or compressor=eden"
        )
    if not hasattr(compressor, "inner"):
        raise ValueError(
            "a reduction by shards needs exchange=gather, scatter or ring, with messages of one "
            "length (code=fixed)"
        )
    wrapper: Any = compressor
    parts = {k: getattr(wrapper, k) for k in ("inner", "dense") if hasattr(wrapper, k)}
    return replace(wrapper, **{k: shard_exchange(part) for k, part in parts.items()})
