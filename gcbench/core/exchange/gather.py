"""Exchanges: each turns a codec into a compressor, and determines how its codes are sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codec import Codec, GridCodec, Message, RaggedCodec, decoder_of
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.packing import shannon_bits
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Given,
    Grads,
    Properties,
    State,
    Step,
    flatten,
    flatten_each,
    sizes_of,
    unflatten,
)
from gcbench.core.methods.bucketed import Bucketed


@dataclass(frozen=True)
class GatherExchange:
    """An all-gather of codes: every worker decodes all of them and averages the values.

    Values are added in the order of the workers, which makes replicas bitwise identical, and runs
    with virtual workers bitwise identical to those with real ones. A worker receives W - 1 messages
    per step.
    """

    codec: Codec

    @property
    def properties(self) -> Properties:
        return self.codec.properties._replace(divisible=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        tensors, sizes = flatten_each(grads), sizes_of(grads)
        noise = step.noise("codec", sizes, tensors[0].device)
        message = self.codec.encode_each(tensors, tuple(sizes.values()), noise)
        return self.gather(message, grads, state, comm, step)

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        first = next(iter(given.grads.values()))
        noise = step.noise("codec", sizes_of(given.grads), first.device)
        message, left = self.codec.encode_corrected(given, noise)
        return self.gather(message, given.grads, state, comm, step), left

    # To ask an object for a protocol takes longer than to code 10^4 values.
    @cached_property
    def _ragged(self) -> RaggedCodec | None:
        return self.codec if isinstance(self.codec, RaggedCodec) else None

    @cached_property
    def _grid(self) -> GridCodec | None:
        return self.codec if isinstance(self.codec, GridCodec) else None

    def codec_in_native_code(self, grads: Grads) -> Bucketed | None:
        """Return the codec if native code fits and codes these gradients."""
        codec, first = self.codec, next(iter(grads.values()))
        if isinstance(codec, Bucketed) and codec.native_for(first, sizes_of(grads)):
            return codec
        return None

    def gather(
        self, message: Message, grads: Grads, state: State, comm: Comm, step: Step
    ) -> Aggregated:
        """Return the aggregate of gradients whose message this is."""
        sizes, device = sizes_of(grads), message[0].device
        segments = tuple(sizes.values())

        def decoder(workers: range) -> Codec:
            step_of = replace(step, workers=workers)
            return decoder_of(self.codec, lambda: step_of.noise("codec", sizes, device))

        lengths = self._ragged.lengths_of(message) if self._ragged else None
        everyone = comm.gather(message, lengths)
        mean = decoder(range(comm.workers)).decode_mean(
            [m.unsqueeze(1) for m in everyone], segments
        )

        def sent() -> Grads:
            decoded = mean.new_zeros(len(message[0]), mean.shape[1])
            decoder(step.workers).decode_add(message, segments, decoded)
            return unflatten(decoded, grads)

        def bound() -> Tensor:
            assert self._grid
            codes = self._grid.codes_in(message, segments)
            return shannon_bits(codes, self._grid.highest + 1) + 32 * message[-1][0].numel()

        return Aggregated(
            unflatten(mean, grads),
            sent,
            state,
            bound if self._grid else None,
        )


@dataclass(frozen=True)
class ScatterExchange:
    """Every worker averages all workers' codes of one shard, and sends the mean to all of them.

    Worker j owns shard j. For the gradient of worker i:

        m_ij = encode(shard j of worker i);   mean_j = (1/W) sum_i decode(m_ij), at worker j
        update_j = mean_j, or decode(encode(mean_j)) with `code_means`

    The owner, too, applies what it sent, so that replicas are bitwise identical. A worker receives
    W - 1 coded shards and W - 1 shards of means; with `code_means`, this is about as much as two
    coded gradients for any number of workers. If the code is biased, the owner corrects it by error
    feedback; its residual is the error of the second coding of its shard.

    All shards have the same size, so buckets run through the whole gradient, which is padded with
    zeros at its end.
    """

    codec: Codec
    code_means: bool  # whether means are coded, too, rather than sent in fp32
    # Which second codings leave the owner a residual; with "none" it counts as having sent W times
    # the error less.
    residual: Literal["biased", "all", "none"] = "biased"

    @property
    def properties(self) -> Properties:
        codec = self.codec.properties
        # Buckets run through the whole gradient, hence the global scope.
        return Properties(
            unbiased=codec.unbiased, contractive=codec.contractive, scope="global", divisible=True
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        x = flatten(grads)
        n, size = x.shape[1], shard_size(x.shape[1], comm.workers)
        x = F.pad(x, (0, comm.workers * size - n))
        mean, decode_sent = average_shards(self.codec, x, comm, step)
        update, state = self._send_on(mean, state, comm, step)

        def sent() -> Tensor:
            rows = decode_sent()
            if self.code_means and self.residual == "none":
                error = mean - update[step.workers.start : step.workers.stop]
                rows[step.workers.start :: comm.workers + 1] -= comm.workers * error
            return rows

        def join_shards(rows: Tensor) -> Grads:
            """Return r rows of gradients, from their shards `[r W, size]`."""
            return unflatten(rows.view(-1, comm.workers * size)[:, :n], grads)

        return Aggregated(join_shards(update), lambda: join_shards(sent()), state)

    def _send_on(self, mean: Tensor, state: State, comm: Comm, step: Step) -> tuple[Tensor, State]:
        """Return the means `[W, size]` of all shards, identical on all workers, and the new state.

        `mean` is `[w, size]`: the means of the shards that the workers in this process own.
        """
        if not self.code_means:
            return comm.gather([mean])[0], state
        corrected = mean + state.per_worker["shard"] if "shard" in state.per_worker else mean
        update = gather_coded(self.codec, corrected, "owner", comm, step)
        unbiased = self.codec.properties.unbiased
        if self.residual == "none" or (self.residual == "biased" and unbiased):
            return update, state
        residual = corrected - update[step.workers.start : step.workers.stop]
        return update, State(state.shared, {"shard": residual}, state.inner)


def gather_coded(codec: Codec, x: Tensor, site: str, comm: Comm, step: Step) -> Tensor:
    """Return what all decode of codes of shards, `[w, size] -> [W, size]`."""
    size = x.shape[1]
    everyone = comm.gather(codec.encode(x, (size,), step.worker_noise(site, size, x.device)))
    of_all = replace(step, workers=range(comm.workers))
    decoded = x.new_zeros(comm.workers, size)
    decoder = decoder_of(codec, lambda: of_all.worker_noise(site, size, x.device))
    decoder.decode_add(everyone, (size,), decoded)
    return decoded


def shard_size(n: int, workers: int) -> int:
    """Return a shard's size, a multiple of 8 so that only the last shard's code is padded."""
    return 8 * -(-n // (8 * workers))


def average_shards(
    codec: Codec, x: Tensor, comm: Comm, step: Step
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Return the means of this process's shards, and a function that decodes what was sent.

    `x` is `[w, W size]`, with one shard per worker. The means are `[w, size]`, of the shards that
    this process's workers own; the function returns `[w W, size]`, shard by shard.
    """
    size = x.shape[1] // comm.workers
    shards = x.reshape(-1, size)  # [w W, size], worker by worker

    def noise_of(workers: range, parts: range) -> Noise:
        whole = replace(step, workers=workers).worker_noise("codec", comm.workers * size, x.device)
        return whole.in_parts(comm.workers, parts)

    everyone = range(comm.workers)
    noise = noise_of(step.workers, everyone)
    message = codec.encode(shards, (size,), noise)
    # [w, W, ...]
    arrived = comm.transpose([m.unflatten(0, (-1, comm.workers)) for m in message])
    mean = decoder_of(codec, lambda: noise_of(everyone, step.workers)).decode_mean(
        [m.transpose(0, 1) for m in arrived], (size,)
    )

    def decode_sent() -> Tensor:
        decoded = torch.zeros_like(shards)
        codec.drawing(noise).decode_add(message, (size,), decoded)
        return decoded

    return mean, decode_sent
