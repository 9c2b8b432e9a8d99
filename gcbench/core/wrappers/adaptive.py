"""Bits or ranks by tensor: chosen every k steps for the least error that the same budget allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codec import Codec
from gcbench.core.codecs.scales import sum_of_squares
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Given,
    Grads,
    Properties,
    State,
    Step,
    aggregate_parts,
    flatten,
    sizes_of,
)
from gcbench.core.fields import Checked, Period
from gcbench.core.methods.matrices import matrix_shape
from gcbench.core.methods.powersgd import PowerSGD

PARTS = 1 << 14  # of a budget, in each of which one choice for the first tensors is kept
_PRECISION = 20  # log2 of the largest error's root, in the unit in which errors are added


@runtime_checkable
class WithBits(Codec, Protocol):
    """A codec that also exists with other numbers of bits."""

    @property
    def width(self) -> int:
        """Return the bits of a code."""

    def by_bits(self) -> Mapping[int, Codec]:
        """Return the codec with every number of bits, ascending; with its own it is itself."""

    def codes_for(self, n: int) -> int:
        """Return the number of codes for a tensor of n values."""


def least_error(
    errors: Sequence[Sequence[float]], costs: Sequence[Sequence[int]], budget: int
) -> list[int]:
    """Return the choice for each tensor with the least sum of errors whose costs are in the budget.

    Where not even the cheapest are, it returns these. Dynamic programming over `PARTS` of what the
    budget leaves beyond the cheapest: of the choices for the first tensors whose costs, which are
    exact, are in the same part, the one with the least error is kept. None is worse than the same
    choice for all tensors, as far as that is in the budget.
    """
    cheapest = [min(choices) for choices in costs]
    free = max(0, budget - sum(cheapest))
    part = free // PARTS + 1
    least, spent = np.full(free // part + 1, np.inf), np.zeros(free // part + 1, dtype=np.int64)
    least[0] = 0
    steps = []
    for of_tensor, choices, base in zip(errors, costs, cheapest, strict=True):
        best, cost = np.full_like(least, np.inf), np.zeros_like(spent)
        choice, before = np.zeros_like(spent), np.zeros_like(spent)
        for i, (error, more) in enumerate(zip(of_tensor, choices, strict=True)):
            total, needed = least + error, spent + (more - base)
            shift = (more - base) // part
            # Costs within a part of each other may end in the same part, or in the next one.
            for places in (np.arange(len(least)) + shift, np.arange(len(least)) + shift + 1):
                (some,) = np.nonzero((needed // part == places) & (needed <= free))
                to = places[some]
                better = total[some] < best[to]
                some, to = some[better], to[better]
                best[to], cost[to], choice[to], before[to] = total[some], needed[some], i, some
        least, spent = best, cost
        steps.append((choice, before))
    place, found = int(least.argmin()), []
    for choice, before in reversed(steps):
        found.append(int(choice[place]))
        place = int(before[place])
    equal = [[min(i, len(choices) - 1) for choices in costs] for i in range(max(map(len, costs)))]
    fitting = [x for x in equal if _sum_of(costs, x) <= budget]
    return min([found[::-1], *fitting], key=lambda x: _sum_of(errors, x))


def _sum_of(values: Sequence[Sequence[float]], chosen: Sequence[int]) -> float:
    return sum(of_tensor[i] for of_tensor, i in zip(values, chosen, strict=True))


@dataclass(frozen=True)
class AdaptiveBits(Checked):
    """A number of bits for each tensor, chosen every k steps for the least error of the gradient.

    With worker i's gradient g_il of tensor l, which has n_l codes, and the static number b:

        e_l(b_l) = sum over i of |C_(b_l)(g_il) - g_il|^2
        (b_l)    = argmin of sum over l of e_l(b_l),  where  sum over l of n_l b_l <= sum of n_l b

    This is the problem of L-GreCo (Markov et al., "L-GreCo: Layerwise-Adaptive Gradient Compression
    for Efficient Data-Parallel Training", MLSys 2024, algorithm 1) with error and size exchanged,
    and is solved as there, by dynamic programming. The first two steps have the static number;
    errors are measured in the second one, and then in every k-th, and hold from the next step on.

    Errors are added as integers, whose sum is the same in any order, so that all workers, also
    virtual ones, choose the same. Sends no more codes than with the static number, in one message
    for each number of bits, and in every k-th step 8 bytes per tensor and choice, and 4 for their
    unit. Reading the choices waits for a GPU in every step.

    Differences from the paper: it has the least size whose error is that of the static parameter,
    measures gradients that were accumulated over the period, and starts after a warm-up.
    """

    codec: WithBits
    adapt_every: Period
    by_bits: Mapping[int, Compressor] = field(repr=False)

    @property
    def properties(self) -> Properties:
        promises = [method.properties for method in self.by_bits.values()]
        return Properties(
            unbiased=all(p.unbiased for p in promises),
            contractive=all(p.contractive for p in promises),
            scope="global",
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        bits = _read(state, grads) or dict.fromkeys(grads, self.codec.width)
        parts = [
            (self.by_bits[b], {k: g for k, g in grads.items() if bits[k] == b})
            for b in sorted({*bits.values()})
        ]
        out = aggregate_parts(parts, grads, State(), comm, step)
        due = _is_due(state, step, self.adapt_every)
        new = self._choose(grads, comm, step) if due else None
        return out._replace(state=State(_choices(state, grads, bits, new)))

    def _choose(self, grads: Grads, comm: Comm, step: Step) -> dict[str, int] | None:
        """Return the bits of the next steps; None if no error is finite, or all are zero."""
        errors = self._measure(grads, step)
        largest = comm.max([errors.flatten(1).amax(1, keepdim=True).sqrt().float()])[0]
        if not 0 < float(largest) < math.inf:
            return None
        in_units = (errors * (2.0**_PRECISION / largest.double()).square().unsqueeze(2)).round()
        summed = comm.sum([in_units.long()])[0][0].tolist()
        counts = [self.codec.codes_for(n) for n in sizes_of(grads).values()]
        costs = [[bits * n for bits in self.by_bits] for n in counts]
        found = least_error(summed, costs, self.codec.width * sum(counts))
        return {k: [*self.by_bits][i] for k, i in zip(grads, found, strict=True)}

    def _measure(self, grads: Grads, step: Step) -> Tensor:
        """Return the squared errors of each worker `[w, tensors, choices]`, float64."""
        x, sizes = flatten(grads), sizes_of(grads)
        segments, noise = tuple(sizes.values()), step.noise("codec", sizes, x.device)
        errors = []
        for codec in self.codec.by_bits().values():
            message, left = codec.encode(x, segments, noise), x.clone()
            codec.drawing(noise).subtract_sent(left, message, segments)
            parts = left.split(segments, dim=1)
            errors.append(torch.stack([sum_of_squares(part) for part in parts], dim=1))
        return torch.stack(errors, dim=2)


@dataclass(frozen=True)
class AdaptiveRank(Checked):
    """A rank for each matrix, chosen every k steps for the most of the mean gradient.

    In every k-th step, from the second on, PowerSGD sends factors of twice the static rank r. The
    first columns of factors are the factors of a lower rank, so that all workers know what each
    rank leaves out, of what 2 r columns have of the mean gradient, without another message:

        e_l(r_l) = sum of |q_j|^2 over the columns j = r_l + 1 .. 2 r of Q_l
        (r_l)    = argmin of sum over l of e_l(r_l),  where  sum over l of r_l (n_l + m_l) <= budget

    as in `AdaptiveBits`. With S and S', the values of ranks r and 2 r, the budget is (k S - S') /
    (k - 1), so that k steps send no more than k static ones, except that the first two do. EDGC
    (arXiv 2511.10333) sets ranks by the entropy of gradients, and the size changes.

    Columns beyond a rank are kept as they were, to start from when they are sent again. No matrix
    gets a rank above r whose factors have more values than it.
    """

    inner: PowerSGD
    adapt_every: Period

    @property
    def properties(self) -> Properties:
        return self.inner.properties._replace(scope="global")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        method, qs, finish = self._of_step(grads, state, step)
        return finish(method.aggregate(grads, qs, comm, step))

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        method, qs, finish = self._of_step(given.grads, state, step)
        out, left = method.aggregate_corrected(given, qs, comm, step)
        return finish(out), left

    def _of_step(
        self, grads: Grads, state: State, step: Step
    ) -> tuple[PowerSGD, State, Callable[[Aggregated], Aggregated]]:
        """Return PowerSGD of a step's ranks, its state, and what turns its result into ours."""
        r, sides = self.inner.rank, {k: matrix_shape(g) for k, g in grads.items()}
        static = {k: min(r, n, m) for k, (n, m) in sides.items()}
        most = {k: max(static[k], min(2 * r, n * m // (n + m))) for k, (n, m) in sides.items()}
        ranks, due = _read(state, grads) or static, _is_due(state, step, self.adapt_every)
        sent, last = most if due else ranks, state.inner.shared if state.inner else {}

        def finish(out: Aggregated) -> Aggregated:
            qs, lengths = out.state.shared, {k: n + m for k, (n, m) in sides.items()}
            new = self._choose(qs, lengths, static) if due else None
            # Columns of zeros are drawn anew when they are sent.
            old = last or {k: q.new_zeros(1, most[k], q.shape[2]) for k, q in qs.items()}
            kept = {k: torch.cat([q, old[k][:, sent[k] :]], dim=1) for k, q in qs.items()}
            choices = _choices(state, grads, ranks, new)
            return out._replace(state=State(choices, inner=State(kept)))

        method = replace(self.inner, ranks=sent)
        return method, State({k: q[:, : sent[k]] for k, q in last.items()}), finish

    def _choose(
        self, qs: Grads, lengths: Mapping[str, int], static: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Return the ranks of the next steps, or None if a column is not finite."""
        squares = iter(torch.cat([sum_of_squares(q[0]) for q in qs.values()]).tolist())
        by_column = [[next(squares) for _ in range(q.shape[1])] for q in qs.values()]
        if not math.isfinite(sum(map(sum, by_column))):
            return None
        errors = [[sum(columns[r:]) for r in range(1, len(columns) + 1)] for columns in by_column]
        costs = [[lengths[k] * r for r in range(1, q.shape[1] + 1)] for k, q in qs.items()]
        static_cost = sum(lengths[k] * static[k] for k in qs)
        budget = self.adapt_every * static_cost - sum(choices[-1] for choices in costs)
        found = least_error(errors, costs, budget // (self.adapt_every - 1))
        return {k: i + 1 for k, i in zip(qs, found, strict=True)}


def adapt(
    method: Compressor | Codec, adapt_every: int, send: Callable[[Codec], Compressor]
) -> Compressor:
    """Return a method whose bits or rank are chosen by tensor; `send` says how codes are sent.

    Raises ValueError for a method without such a number, or with the least.
    """
    name = type(method).__name__
    if isinstance(method, PowerSGD):
        if method.rank == 1:
            raise _refusal(adapt_every, "no matrix can have a lower rank than 1; type rank=2")
        return AdaptiveRank(method, adapt_every)
    if not isinstance(method, WithBits):
        raise _refusal(adapt_every, f"{name} has neither bits nor a rank to choose by tensor")
    codecs = method.by_bits()
    if method.width == min(codecs):
        few, more = method.width, method.width + 1
        raise _refusal(adapt_every, f"no tensor can have fewer bits than {few}; type bits={more}")
    return AdaptiveBits(method, adapt_every, {bits: send(c) for bits, c in codecs.items()})


def _refusal(adapt_every: int, why: str) -> ValueError:
    return ValueError(f"adapt_every={adapt_every}: {why}, or adapt_every=null")


def _is_due(state: State, step: Step, every: int) -> bool:
    """Return whether a step measures: never a first one, which may be the only one."""
    return bool(state.shared) and step.number % every == 1


def _read(state: State, grads: Grads) -> dict[str, int]:
    """Return what was chosen for each tensor; nothing before the first step."""
    if not state.shared:
        return {}
    chosen = torch.cat([state.shared[name] for name in grads]).flatten().tolist()
    return dict(zip(grads, chosen, strict=True))


def _choices(
    state: State, grads: Grads, now: Mapping[str, int], new: Mapping[str, int] | None
) -> Grads:
    """Return the next step's choices as tensors `[1, 1]`; they are only written if they are new."""
    if state.shared and new is None:
        return state.shared
    device, chosen = next(iter(grads.values())).device, new or now
    values = torch.tensor([chosen[name] for name in grads], device=device).view(-1, 1, 1)
    return dict(zip(grads, values.unbind(), strict=True))
