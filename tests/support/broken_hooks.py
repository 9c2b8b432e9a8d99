"""DDP communication hooks that each break what one check of `gcbench check` demands."""

import os
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]

# No annotation may be a text here, as DDP compares them with types.
Future = torch.futures.Future[Tensor]
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
kept: dict[int, Tensor] = {}  # a new one for each case


def done(value: Tensor) -> Future:
    future: Future = torch.futures.Future()
    future.set_result(value)
    return future


def reduced(x: Tensor, operation: Any = SUM) -> Tensor:
    dist.all_reduce(x, operation)
    return x


def mean(x: Tensor) -> Tensor:
    return reduced(x) / dist.get_world_size()


def good(state: object, bucket: GradBucket) -> Future:
    return done(mean(bucket.buffer()))


def alone(state: object, bucket: GradBucket) -> Future:
    return done(bucket.buffer())


def silent(state: object, bucket: GradBucket) -> Future:
    return done(torch.zeros_like(bucket.buffer()))


def adds(state: object, bucket: GradBucket) -> Future:
    return done(reduced(bucket.buffer()))


def swaps(state: object, bucket: GradBucket) -> Future:
    """Gives each bucket the mean of the one before, where they are as long."""
    before = kept.get(0, bucket.buffer())
    kept[0] = mean(bucket.buffer())
    return done(before if before.shape == kept[0].shape else kept[0])


def skips(state: object, bucket: GradBucket) -> Future:
    """Gives no update to what this worker has not used."""
    used = [bool(g.any()) for g in bucket.gradients()]
    bucket.set_buffer(mean(bucket.buffer()))
    for g, here in zip(bucket.gradients(), used, strict=True):
        g.mul_(float(here))
    return done(bucket.buffer())


def largest(state: object, bucket: GradBucket) -> Future:
    """Scales by the largest of each tensor, of which an empty one has none."""
    scale = max(g.abs().max() for g in bucket.gradients())
    return done(mean(bucket.buffer() / scale) * reduced(scale, MAX))


def by_rows(state: object, bucket: GradBucket) -> Future:
    """Sums rows, which a 0-d tensor has not."""
    if any(len(g.shape) == 0 or g.shape[0] < 0 for g in bucket.gradients()):
        raise ValueError("a tensor has no rows")
    return done(mean(bucket.buffer()))


def pairs(state: object, bucket: GradBucket) -> Future:
    return done(mean(bucket.buffer().view(-1, 2)).flatten())


def flattens(state: object, bucket: GradBucket) -> Future:
    for p in bucket.parameters():
        p.view(-1)
    return done(mean(bucket.buffer()))


def divides(state: object, bucket: GradBucket) -> Future:
    x = bucket.buffer()
    scale = reduced(x.norm(), MAX)
    return done(mean(x / scale) * scale)


def remembers(group: Any) -> tuple[Any, Any]:
    """Returns a hook whose residual keeps a NaN for ever."""

    def hook(state: Any, bucket: GradBucket) -> Future:
        x = bucket.buffer() + state.residuals.get(0, torch.zeros(1))
        sent = x.half().float()
        state.residuals = {0: x - sent}
        return done(mean(sent))

    return SimpleNamespace(residuals={}), hook


def forgets(group: Any, claimed: bool = True) -> tuple[Any, Any]:
    """Returns a hook that sends every second value, and has error feedback in name only."""

    def hook(state: Any, bucket: GradBucket) -> Future:
        x = mean(bucket.buffer())
        x[::2] = 0
        return done(x)

    return SimpleNamespace(use_error_feedback=claimed), hook


def boasts(group: Any, bits: int = 1) -> tuple[Any, Any]:
    """Returns a hook that sends 32 bits per value, and says that it sends `bits`."""

    def hook(state: Any, bucket: GradBucket) -> Future:
        state.bits_sent += bits * bucket.buffer().numel()
        return done(mean(bucket.buffer()))

    return SimpleNamespace(bits_sent=0), hook


def no_pair(group: Any) -> str:
    return "allreduce"


def dies(state: object, bucket: GradBucket) -> Future:
    os.abort()
