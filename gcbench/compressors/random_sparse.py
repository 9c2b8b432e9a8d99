"""Random K and Random Block: an all-reduce of values at positions that all workers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.indices import largest
from gcbench.codecs.noise import site_number
from gcbench.comm import Comm
from gcbench.compressors.base import (
    Aggregated,
    Grads,
    Properties,
    State,
    Step,
    flatten_each,
    sizes_of,
)
from gcbench.compressors.matrices import is_stack, sides_of
from gcbench.seeds import mix
from gcbench.settings.fields import Checked, Count


@dataclass(frozen=True)
class RandomK(Checked):
    """Values at positions that are drawn again every step, the same on all workers.

    A baseline of PowerSGD (Vogels et al., NeurIPS 2019, table 4), with PowerSGD's budget.
    For a tensor M `[n, m]` (a stack `[k, n, m]` has k times the budget):

        K = r (n + m) positions, drawn without replacement every step from a shared seed
        values <- mean over workers of M at these positions;   decode: the values there, 0 elsewhere

    Linear in M. E||C(v) - v||^2 = (1 - K / (n m)) ||v||^2: biased (values are not scaled up),
    meant for error feedback.

    Sends K = min(r (n + m), n m) floats per tensor with r = min(rank, n, m), and no positions.

    Differences from the authors' code: positions are those of the K largest of n m random numbers,
    which are drawn for the step.
    """

    rank: Count
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        sizes = sizes_of(grads)
        draws = step.noise(
            "random_k", sizes, next(iter(grads.values())).device, shared=True
        ).uniform()
        parts = zip(grads.values(), draws.split(list(sizes.values()), dim=1), strict=True)
        chosen = [largest(part, _budget(g, self.rank))[0] for g, part in parts]
        flat = zip(flatten_each(grads), chosen, strict=True)
        rows = [row.index_select(1, index) for row, index in flat]

        def decode(values: list[Tensor]) -> Grads:
            """Return the values at their positions, and zeros elsewhere."""
            parts = zip(grads.items(), chosen, values, strict=True)
            return {
                k: x.new_zeros(len(v), sizes[k]).index_copy_(1, i, v).view(-1, *x.shape[1:])
                for (k, x), i, v in parts
            }

        return Aggregated(decode(comm.mean(rows)), lambda: decode(rows), state)


@dataclass(frozen=True)
class RandomBlock(Checked):
    """Consecutive values from a position drawn again every step, the same on all workers.

    Differs from `RandomK` in that the K values are adjacent: they start at one shared random
    position and continue at the tensor's beginning when they pass its end, so that memory is read
    in order.

    Sends as much as `RandomK`, with the same error: every value is sent with probability K / (n m),
    but neighbors are sent together.

    Differences from the authors' code: none known.
    """

    rank: Count
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        base = (step.seed, site_number("random_block"), step.number)
        sizes = sizes_of(grads)
        starts = {k: mix(*base, step.offsets[k]) % n for k, n in sizes.items()}
        flat = zip(grads.items(), flatten_each(grads), strict=True)
        rows = [x.roll(-starts[k], 1)[:, : _budget(g, self.rank)] for (k, g), x in flat]

        def decode(values: list[Tensor]) -> Grads:
            """Return the values at their block's place, and zeros elsewhere."""
            return {
                k: F.pad(v, (0, sizes[k] - v.shape[1])).roll(starts[k], 1).view(-1, *g.shape[1:])
                for (k, g), v in zip(grads.items(), values, strict=True)
            }

        return Aggregated(decode(comm.mean(rows)), lambda: decode(rows), state)


def _budget(g: Tensor, rank: int) -> int:
    """Return how many values PowerSGD of this rank sends for `g`, at most all of them."""
    shape = g.shape[1:]
    count, (n, m) = (shape[0], sides_of(shape[1:])) if is_stack(shape) else (1, sides_of(shape))
    return count * min(min(rank, n, m) * (n + m), n * m)
