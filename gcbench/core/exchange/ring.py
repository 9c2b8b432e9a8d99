"""A ring of coded messages, which every worker decodes, adds to and codes again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.noise import Noise
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step, flatten, unflatten
from gcbench.core.exchange.gather import gather_coded, shard_size


@dataclass(frozen=True)
class RingExchange:
    """A ring all-reduce of codes: each worker decodes, adds its values, and codes the sum again.

    This is what NCCL-like rings do with a coded wire, and what DynamiQ (Han et al., 2026, arXiv
    2602.08923) sets out to repair: an error at every hop. Chunk c of the gradient begins at worker
    c - 1 and goes down to worker c, as in gloo's ring. With x_ic chunk c of worker i:

        m_1 = encode(x_ic / W) at i = c - 1
        m_h = encode(decode(m_(h-1)) + x_ic / W) at i = c - h, for h = 2, ..., W
        update_c = decode(m_W)

    Worker c codes last, and its code goes round to all others unchanged. A worker sends W - 1 codes
    of a chunk to its neighbor and one to everyone: as many bits as with `scatter_coded`. It codes
    every chunk once, with an error e_ic; so it counts as having sent x_i - W e_i, whose mean over
    the workers is the update.

    If gradients are independent, an unbiased code has (W + 1) / 2 times the variance of a gather:
    the sum of h workers has a variance of h, and its code an error of that size. If they are equal,
    it has W times that of a gather, as much as one coding: each value stays between two levels, and
    is rounded to one of them with the same chances in one step or in many. Chunks have the same
    size, and buckets run through them.
    """

    codec: Codec

    @property
    def properties(self) -> Properties:
        # An error is one of a sum, which may be larger than any worker's own values.
        return Properties(unbiased=self.codec.properties.unbiased, scope="global", divisible=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        x = flatten(grads)
        size = shard_size(x.shape[1], comm.workers)
        padded = F.pad(x, (0, comm.workers * size - x.shape[1]))
        total, decode_sent = add_in_ring(self.codec, padded, comm, step)
        update = gather_coded(self.codec, total, "last hop", comm, step)

        def sent() -> Grads:
            mine = update[step.workers.start : step.workers.stop]
            rows = decode_sent(total - mine)
            return unflatten(rows[:, : x.shape[1]], grads)

        return Aggregated(unflatten(update.view(1, -1)[:, : x.shape[1]], grads), sent, state)


@dataclass(frozen=True)
class RingShards:
    """A ring reduce-scatter of codes: the ring of `RingExchange`, whose sums stay where they end.

    Takes one tensor `[w, W size]`, with one shard per worker. The update is `[w, size]`.
    """

    codec: Codec

    @property
    def properties(self) -> Properties:
        return RingExchange(self.codec).properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        ((name, x),) = grads.items()
        mean, decode_sent = add_in_ring(self.codec, x, comm, step)
        return Aggregated({name: mean}, lambda: {name: decode_sent(None)}, state)


def add_in_ring(
    codec: Codec, x: Tensor, comm: Comm, step: Step
) -> tuple[Tensor, Callable[[Tensor | None], Tensor]]:
    """Return the means of the shards of this process's workers, and what they count as having sent.

    `x` is `[w, W size]`, with one shard per worker; the means are `[w, size]`, before any further
    coding. The function takes the error of that coding, and returns `[w, W size]`.
    """
    workers = comm.workers
    size = x.shape[1] // workers
    shares = x.view(-1, workers, size) / workers
    row = torch.arange(len(x), device=x.device)
    place = row + step.workers.start
    coded: list[tuple[Tensor, Tensor, Codec, Message]] = []  # chunks, values, decoders, codes
    total = shares[row, (place + 1) % workers]
    of_all = replace(step, workers=range(workers))
    for hop in range(1, workers):
        noise = of_all.worker_noise(f"hop {hop}", size, x.device)
        own, sender = (Noise(noise.keys[i], noise.runs) for i in (place, (place + 1) % workers))
        message = codec.encode(total, (size,), own)
        coded.append(((place + hop) % workers, total, codec.drawing(own), message))
        total = shares[row, (place + hop + 1) % workers]
        codec.drawing(sender).decode_add(comm.pass_on(message), (size,), total)

    def decode_sent(last_error: Tensor | None) -> Tensor:
        errors = torch.zeros_like(shares)
        for chunks, values, decoder, message in coded:
            decoded = torch.zeros_like(values)
            decoder.decode_add(message, (size,), decoded)
            errors[row, chunks] = values - decoded
        if last_error is not None:
            errors[row, place] = last_error
        return x - workers * errors.flatten(1)

    return total, decode_sent
