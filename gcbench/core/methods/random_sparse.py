"""Random K, Random Block and GlobalRandK: values at positions that all workers share."""

from __future__ import annotations

from collections.abc import Sequence
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
    Given,
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
        chosen = self._choose(grads, step)
        return _exchange(view_flat(grads).index_select(1, chosen), chosen, grads, state, comm)

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        chosen = self._choose(given.grads, step)  # first, as draws take as much memory as x
        x = given.flat()
        out = _exchange(x.index_select(1, chosen), chosen, given.grads, state, comm)
        return out, given.left_in(x.index_fill_(1, chosen, 0))

    def _choose(self, grads: Grads, step: Step) -> Tensor:
        """Return the positions in a row of all values."""
        sizes, device = sizes_of(grads), next(iter(grads.values())).device
        draws = step.noise("random_k", sizes, device, shared=True).uniform()
        budgets = [_budget(g, self.rank) for g in grads.values()]
        return largest_of_each(draws, [*sizes.values()], budgets)[0]


def _exchange(values: Tensor, chosen: Tensor, like: Grads, state: State, comm: Comm) -> Aggregated:
    """Return the aggregate of values at positions of a row that all workers share."""
    n = sum(sizes_of(like).values())

    def decode(values: Tensor) -> Grads:
        """Return the values at their positions, and zeros elsewhere."""
        rows = values.new_zeros(len(values), n).index_copy_(1, chosen, values)
        return unflatten(rows, like)

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
        blocks = self._blocks(flatten_each(grads), grads, step)
        return self._exchange(torch.cat(blocks, dim=1), grads, state, comm, step)

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        x = given.flat()
        blocks = self._blocks(x.split(given.segments, dim=1), given.grads, step)
        out = self._exchange(torch.cat(blocks, dim=1), given.grads, state, comm, step)
        torch._foreach_zero_(blocks)
        return out, given.left_in(x)

    def _blocks(self, tensors: Sequence[Tensor], grads: Grads, step: Step) -> list[Tensor]:
        """Return views of the values of each block of `[w, n]`, in two parts where it wraps."""
        base, blocks = (step.seed, site_number("random_block"), step.number), []
        for (name, g), x in zip(grads.items(), tensors, strict=True):
            n, k = x.shape[1], _budget(g, self.rank)
            start = mix(*base, step.offsets[name]) % n
            blocks += [x[:, start : start + k], x[:, : max(0, start + k - n)]]
        return [block for block in blocks if block.shape[1]]

    def _exchange(
        self, values: Tensor, like: Grads, state: State, comm: Comm, step: Step
    ) -> Aggregated:
        def decode(values: Tensor) -> Grads:
            """Return the values at their block's place, and zeros elsewhere."""
            out = unflatten(values.new_zeros(len(values), sum(sizes_of(like).values())), like)
            places = self._blocks(flatten_each(out), like, step)
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
        sizes, device = sizes_of(grads), next(iter(grads.values())).device
        n = sum(sizes.values())
        noise = step.noise("global_randk", sizes, device, shared=True)
        drawn = largest(noise.uniform(), min(self.k, n))[0]
        few = {"drawn": view_flat(grads).index_select(1, drawn)}
        out = self.quantizer.aggregate(few, state, comm, replace(step, offsets={"drawn": 0}))

        def place(values: Grads) -> Grads:
            rows = values["drawn"]
            return unflatten(rows.new_zeros(len(rows), n).index_copy_(1, drawn, rows), grads)

        return Aggregated(place(out.update), lambda: place(out.sent()), out.state)
