"""How codes travel: any codec becomes a compressor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.entropy import shannon_bits
from gcbench.codecs.noise import Noise
from gcbench.codecs.packing import pack_lanes, unpack_lanes
from gcbench.comm import Comm
from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    flatten,
    flattened,
    sizes_of,
    unflatten,
)
from gcbench.compressors.counted import Counted, TableCodec

Message = list[Tensor]
"""What one encode sends, every tensor `[w, ...]`."""


class Codec(Protocol):
    """A pure code for rows of values; `segments` are the sizes of the tensors that a row holds."""

    @property
    def properties(self) -> Properties: ...

    def reorder(self, tensors: Sequence[Tensor], segments: tuple[int, ...]) -> Tensor:
        """The tensors, `[w, segment]` each, as rows `[w, n]` in the order that the code takes values in."""
        return torch.cat(list(tensors), dim=1) if len(tensors) > 1 else tensors[0]

    def restore_order(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        """From that order to tensors end to end."""
        return x

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        """`[w, n]`, laid out, to a message; the noise is of values end to end."""

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        """Add the values of a message of r rows to `out` `[r, n]`, laid out."""


@runtime_checkable
class RaggedCodec(Codec, Protocol):
    """A codec whose messages are as long as the codes in them make them."""

    def lengths_of(self, message: Message) -> list[Tensor | None]:
        """How many entries of each tensor count, by row (`comm.gather`)."""


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
        sizes = sizes_of(grads)
        segments = tuple(sizes.values())
        x = self.codec.reorder(flattened(grads), segments)
        noise = step.noise("codec", sizes, x.device)
        message = self.codec.encode(x, segments, noise)
        everyone = comm.gather(
            message, self.codec.lengths_of(message) if isinstance(self.codec, RaggedCodec) else None
        )
        total = x.new_zeros(1, x.shape[1])
        for k in range(comm.workers):
            self.codec.decode_add([m[k : k + 1] for m in everyone], segments, total)

        def sent() -> Grads:
            own = torch.zeros_like(x)
            self.codec.decode_add(message, segments, own)
            return unflatten(self.codec.restore_order(own, segments), grads)

        def bound() -> Tensor:
            assert isinstance(self.codec, GridCodec)
            return _shannon_bits(self.codec, x, segments, noise)

        update = self.codec.restore_order(total.div_(comm.workers), segments)
        return Aggregated(
            unflatten(update, grads),
            sent,
            state,
            bound if isinstance(self.codec, GridCodec) else None,
        )


@dataclass(frozen=True)
class Scattered:
    """Worker i owns the i-th shard of the gradient: it gets everybody's code of it, averages, and sends the mean to all.

        m_ij = encode(shard j of worker i);   mean_j = (1/W) sum_i decode(m_ij), at worker j;   update_j = mean_j, or
        decode(encode(mean_j)) with `again`

    The owner, too, applies what it sent, so that replicas are equal to the bit. A worker receives W - 1 coded shards and
    W - 1 shards of the mean: about two gradients' worth of code with `again`, however many workers there are. A code that is
    biased is corrected by a memory of the owner's, of what the second coding left out of its shard.

    Buckets run through the gradient as one row, for shards to be of one size; the last is filled up with zeros.
    """

    codec: Codec
    again: bool  # the mean is coded too; else it travels in fp32

    @property
    def properties(self) -> Properties:
        return Properties(
            unbiased=self.codec.properties.unbiased, scope="global"
        )  # buckets run through the gradient

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        x = flatten(grads)
        size = self._shard_size(x.shape[1], comm.workers)
        padded = F.pad(x, (0, comm.workers * size - x.shape[1]))
        shards = self.codec.reorder(
            [padded.view(-1, size)], (size,)
        )  # [w W, size], worker by worker
        noise = step.own_noise("codec", comm.workers * size, x.device).in_parts(comm.workers)
        message = self.codec.encode(shards, (size,), noise)

        arrived = comm.transpose(
            [m.unflatten(0, (-1, comm.workers)) for m in message]
        )  # [w, W, ...]
        mean = shards.new_zeros(len(step.workers), size)
        for k in range(comm.workers):
            self.codec.decode_add([m[:, k] for m in arrived], (size,), mean)
        mean.div_(comm.workers)
        update, state = self._send_on(mean, state, comm, step)

        def sent() -> Grads:
            own = torch.zeros_like(shards)
            self.codec.decode_add(message, (size,), own)
            return whole(own)

        def whole(rows: Tensor) -> Grads:
            """From shards `[r W, size]`."""
            back = self.codec.restore_order(rows, (size,)).view(-1, comm.workers * size)
            return unflatten(back[:, : x.shape[1]], grads)

        return Aggregated(whole(update), sent, state)

    def _send_on(self, mean: Tensor, state: State, comm: Comm, step: Step) -> tuple[Tensor, State]:
        """`[w, size]` means of the own shards to `[W, size]`, as everybody has them."""
        if not self.again:
            return comm.gather([mean])[0], state
        segments, size = (mean.shape[1],), mean.shape[1]
        corrected = mean + state.per_worker["shard"] if "shard" in state.per_worker else mean
        noise = step.own_noise("owner", size, mean.device)
        message = self.codec.encode(corrected, segments, noise)
        everyone = comm.gather(message)
        update = mean.new_zeros(comm.workers, size)
        self.codec.decode_add(everyone, segments, update)
        if self.codec.properties.unbiased:
            return update, state
        own = update[step.workers.start : step.workers.stop]
        return update, State(
            shared=state.shared, per_worker={"shard": corrected - own}, inner=state.inner
        )

    def _shard_size(self, n: int, workers: int) -> int:
        """Whole groups of eight values, so that no shard's code is padded but the last."""
        return 8 * -(-n // (8 * workers))


@runtime_checkable
class GridCodec(Codec, Protocol):
    """A codec whose codes are numbers on a grid, so that on one grid the codes of all workers can be added."""

    @property
    def highest(self) -> int:
        """Codes are 0 to `highest`; `highest / 2` stands for zero."""

    @property
    def bucket_size(self) -> int:
        """Values that share a scale."""

    def scales_of(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        """`[w, buckets]`; any larger scale will do as well."""

    def codes_of(
        self, x: Tensor, segments: tuple[int, ...], scales: Tensor, noise: Noise
    ) -> Tensor:
        """`[w, n]` uint8."""

    def values_of(self, codes: Tensor, segments: tuple[int, ...], scales: Tensor) -> Tensor:
        """Of centred codes: `[r, n]` numbers from `-highest / 2` to `highest / 2`, or sums of such."""


def _shannon_bits(codec: GridCodec, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Tensor:
    """`[w]`, the least that a message of these codes can cost, with 32 bits for each scale."""
    scales = codec.scales_of(x, segments)
    codes = codec.codes_of(x, segments, scales, noise)
    return shannon_bits(codes, codec.highest + 1) + 32 * scales.shape[1]


@dataclass(frozen=True)
class Summed:
    """All workers code on one grid, the largest scale of all, and the codes are added by an all-reduce of integers.

        scale = max over workers;   update = decode(sum of codes) / W

    A sum of W codes of s levels needs b = ceil(log2(2 W s + 1)) bits, so floor(64 / b) lanes share a 64-bit word: never more
    than the smallest integer type that holds such sums, and less than 8 bits a value whenever W s <= 63. What is received
    does not grow with W, but for that logarithm.
    """

    codec: GridCodec

    @property
    def properties(self) -> Properties:
        return Properties(
            unbiased=self.codec.properties.unbiased, scope=self.codec.properties.scope
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        sizes = sizes_of(grads)
        segments = tuple(sizes.values())
        x = self.codec.reorder(flattened(grads), segments)
        scales = comm.max([self.codec.scales_of(x, segments)])[0]  # [1, buckets]
        noise = step.noise("codec", sizes, x.device)
        codes = self.codec.codes_of(x, segments, scales.expand(x.shape[0], -1), noise)
        update = self.codec.values_of(sum_codes(codes, self.codec.highest, comm), segments, scales)

        def sent() -> Grads:
            centred = codes - self.codec.highest / 2
            return unflatten(
                self.codec.restore_order(self.codec.values_of(centred, segments, scales), segments),
                grads,
            )

        update = self.codec.restore_order(update.div_(comm.workers), segments)
        return Aggregated(unflatten(update, grads), sent, state)


def sum_codes(codes: Tensor, highest: int, comm: Comm) -> Tensor:
    """All workers' codes from 0 to `highest` added, in lanes that hold their sum: `[w, n] -> [1, n]` around zero."""
    bits = (comm.workers * highest).bit_length()
    total = unpack_lanes(comm.sum([pack_lanes(codes, bits)])[0], codes.shape[1], bits)
    # In integers up to the halves: a float32 holds no odd number above 2^24.
    return (2 * total - comm.workers * highest).to(torch.float32) / 2


Exchange = Literal["gather", "scatter", "scatter_coded", "sum"]


def sent_by(codec: Codec, exchange: Exchange) -> Compressor:
    """The compressor that sends `codec` in this way."""
    if exchange == "gather":
        return Gathered(codec)
    if exchange == "sum":
        if isinstance(codec, GridCodec):
            return Summed(codec)
        if isinstance(codec, TableCodec):
            return Counted(codec)
        raise ValueError(
            "exchange=sum needs codes on a shared grid, as qsgd has them; type exchange=gather or scatter"
        )
    return Scattered(codec, again=exchange == "scatter_coded")
