"""Exchanges of counts, between nodes, of shards and of aligned buckets, and the choice of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcbench.core.codec import Codec, GridCodec, RaggedCodec, TableCodec, decoder_of
from gcbench.core.codecs.levels import level_values
from gcbench.core.codecs.packing import pack_lanes, unpack_lanes
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.nodes import Nodes
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    aggregate_parts,
    flatten,
    sizes_of,
    unflatten,
)
from gcbench.core.exchange.gather import (
    GatherExchange,
    ScatterExchange,
    SumExchange,
    average_shards,
)
from gcbench.core.exchange.ring import RingExchange, RingShards
from gcbench.core.fields import Checked, Count
from gcbench.core.keys import Code, Exchange
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.entropy_coded import apply_code
from gcbench.core.methods.matrices import is_convolution
from gcbench.core.wrappers.rotated import Rotated
from gcbench.core.wrappers.wrappers import BucketsThroughGradient


@dataclass(frozen=True)
class CountExchange:
    """All workers agree on levels, and an all-reduce counts how many workers chose each.

    ORQ's option (a), section 4: levels "coherent among all the worker nodes", so that the average
    needs few bits.

        b_1 = min, b_s = max, the others the mean of the workers' levels
        c_k = number of workers that chose b_k
        update = (1/W) sum over k of c_k b_k

    The mean of unevenly spaced levels is in general not a level, so their codes cannot be added.
    Counts can: those of all levels except the first are sent as digits in base W + 1, which take
    log2(W + 1) (s - 1) bits per value, in lanes of a 64-bit word. For 3, 5 and 9 levels, a worker
    receives less than with a gather from about 5, 7 and 10 workers on. In addition, each bucket
    costs an all-reduce of s floats. The levels do not minimize the error of any single worker.
    """

    codec: TableCodec

    @property
    def properties(self) -> Properties:
        codec = self.codec.properties
        return Properties(unbiased=codec.unbiased, scope=codec.scope, divisible=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        x, sizes = flatten(grads), sizes_of(grads)
        segments = tuple(sizes.values())
        buckets = self.codec.buckets(segments, x.device)
        tables = _agree(self.codec.fit_buckets(x, segments), comm)  # [1, buckets, s]
        noise = step.noise("codec", sizes, x.device)
        codes = self.codec.codes_by(x, segments, tables.expand(x.shape[0], -1, -1), noise)
        levels = buckets.spread(tables[0].T).unsqueeze(1).unbind(0)
        counts = _count(codes, self.codec.level_count, comm)
        update = torch.zeros_like(x[:1])
        for count, level in zip(counts, levels, strict=True):
            update.addcmul_(count, level)

        def sent() -> Grads:
            return unflatten(level_values(codes, levels), grads)

        return Aggregated(unflatten(update.div_(comm.workers), grads), sent, state)


def _agree(tables: Tensor, comm: Comm) -> Tensor:
    """Return levels `[1, buckets, s]` for all workers, from each worker's `[w, buckets, s]`."""
    least, greatest = comm.min([tables[..., :1]])[0], comm.max([tables[..., -1:]])[0]
    if tables.shape[2] == 2:
        return torch.cat([least, greatest], dim=2)
    # Rounding may put the mean of equal levels outside the range.
    inner = comm.mean([tables[..., 1:-1]])[0].maximum(least).minimum(greatest)
    return torch.cat([least, inner, greatest], dim=2)


def _count(codes: Tensor, levels: int, comm: Comm) -> list[Tensor]:
    """Return how many workers chose each level, one `[1, n]` per level."""
    base = comm.workers + 1
    bits = (base ** (levels - 1) - 1).bit_length()
    if bits > 31:
        raise ValueError(
            f"exchange=sum: counts of {levels} levels by {comm.workers} workers take {bits} bits "
            "per value, no fewer than fp32; type exchange=scatter_coded, or a smaller level_count"
        )
    weights = torch.tensor([0, *(base**k for k in range(levels - 1))], device=codes.device)
    rest = unpack_lanes(
        comm.sum([pack_lanes(weights[codes.long()], bits)])[0], codes.shape[1], bits
    )
    counts = [rest // base**k % base for k in range(levels - 1)]
    return [comm.workers - torch.stack(counts).sum(0), *counts]


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
    code: Code = "fixed"

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


def build_exchange(codec: Codec, exchange: Exchange) -> Compressor:
    """Return a compressor that sends the codes of `codec` by `exchange`.

    Raises ValueError for exchange=sum with a codec that cannot share a grid or tables.
    """
    if exchange == "gather":
        return GatherExchange(codec)
    if exchange == "sum":
        if isinstance(codec, GridCodec):
            return SumExchange(codec)
        if isinstance(codec, TableCodec):
            return CountExchange(codec)
        raise ValueError(
            "exchange=sum needs codes on a shared grid, such as those of qsgd; "
            "type exchange=gather or scatter"
        )
    if exchange == "ring":
        return RingExchange(codec)
    return ScatterExchange(codec, code_means=exchange == "scatter_coded")
