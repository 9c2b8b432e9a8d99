"""Random K and Random Block: an all-reduce of values at positions that all workers share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gcbench.core.codecs.indices import largest, largest_of_each
from gcbench.core.codecs.noise import mix, site_number
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    flatten_each,
    sizes_of,
    unflatten,
    view_flat,
)
from gcbench.core.fields import Checked, Count, example
from gcbench.core.methods.matrices import is_stack, sides_of


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

    rank: Annotated[Count, example(2)]
    """a budget of r (n + m) values"""
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        sizes = sizes_of(grads)
        flat = view_flat(grads)
        draws = step.noise("random_k", sizes, flat.device, shared=True).uniform()
        budgets = [_budget(g, self.rank) for g in grads.values()]
        chosen = largest_of_each(draws, [*sizes.values()], budgets)[0]
        values = flat.index_select(1, chosen)

        def decode(values: Tensor) -> Grads:
            """Return the values at their positions, and zeros elsewhere."""
            rows = values.new_zeros(len(values), flat.shape[1]).index_copy_(1, chosen, values)
            return unflatten(rows, grads)

        return Aggregated(decode(comm.mean([values])[0]), lambda: decode(values), state)


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

    rank: Annotated[Count, example(2)]
    """a budget of r (n + m) values"""
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        base = (step.seed, site_number("random_block"), step.number)
        sizes = sizes_of(grads)
        starts = [mix(*base, step.offsets[k]) % n for k, n in sizes.items()]
        budgets = [_budget(g, self.rank) for g in grads.values()]

        def blocks_of(tensors: Grads) -> list[Tensor]:
            """Return views of the values of each block, in two parts where it wraps."""
            return [
                part
                for x, start, k in zip(flatten_each(tensors), starts, budgets, strict=True)
                for part in (x[:, start : start + k], x[:, : max(0, start + k - x.shape[1])])
                if part.shape[1]
            ]

        values = torch.cat(blocks_of(grads), dim=1)

        def decode(values: Tensor) -> Grads:
            """Return the values at their block's place, and zeros elsewhere."""
            out = unflatten(values.new_zeros(len(values), sum(sizes.values())), grads)
            places = blocks_of(out)
            torch._foreach_copy_(places, values.split([x.shape[1] for x in places], dim=1))
            return out

        return Aggregated(decode(comm.mean([values])[0]), lambda: decode(values), state)


def _budget(g: Tensor, rank: int) -> int:
    """Return how many values PowerSGD of this rank sends for `g`, at most all of them."""
    shape = g.shape[1:]
    count, (n, m) = (shape[0], sides_of(shape[1:])) if is_stack(shape) else (1, sides_of(shape))
    return count * min(min(rank, n, m) * (n + m), n * m)


@dataclass(frozen=True)
class GlobalRandK(Checked):
    """A quantizer of a few values, drawn at random from the whole gradient.

    Vineeth S, "Unbiased Single-scale and Multi-scale Quantizers for Distributed Optimization",
    2021, sections 3.3 and 3.4 (GRandK-MN, GRandK-MN-TS). Of the n values of the whole gradient

        K are drawn without replacement every step, the same on all workers
        update = Q of the drawn values, 0 elsewhere

    with Q = `MaxNorm` or `MultiScale`, whose norm and scales are those of the drawn values. If K >=
    n, all values are drawn.

    The drawn values are not scaled up, so that E[update] is K / n times the mean: biased, with a
    smaller step for every value.

    Sends what Q sends for min(K, n) values, and no positions.

    Differences from the paper: it only says that values are drawn uniformly; the authors' code goes
    through one fixed permutation, K values per step. That code also keeps each worker's own
    gradient in the values that were not drawn, so that its replicas drift apart; here the update is
    zero there.
    """

    quantizer: Compressor
    k: Annotated[Count, example(10000)] = 10_000
    """values drawn from the whole gradient every step, the same on all workers [Vineeth S, section
    3.3]"""
    properties: ClassVar[Properties] = Properties(scope="global")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        g = view_flat(grads)
        n = g.shape[1]
        noise = step.noise("global_randk", sizes_of(grads), g.device, shared=True)
        drawn = largest(noise.uniform(), min(self.k, n))[0]
        few = {"drawn": g.index_select(1, drawn)}
        out = self.quantizer.aggregate(few, state, comm, replace(step, offsets={"drawn": 0}))

        def place(values: Grads) -> Grads:
            rows = values["drawn"]
            return unflatten(rows.new_zeros(len(rows), n).index_copy_(1, drawn, rows), grads)

        return Aggregated(place(out.update), lambda: place(out.sent()), out.state)
