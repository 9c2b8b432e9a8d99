"""ACP-SGD: half of PowerSGD's power iteration per step; and sketches without error feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from gcbench.core.codecs.low_rank import Shape, Shapes
from gcbench.core.codecs.power_iteration import (
    Stacks,
    add,
    add_times,
    orthogonalize,
    product,
    product_and_rest,
    ps_of,
    qs_of,
    restart,
    stack,
    times,
    transposed_times,
)
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Given,
    Grads,
    Properties,
    State,
    Step,
    flatten,
    merge,
    sizes_of,
    unflatten,
)
from gcbench.core.fields import Checked, Count, example
from gcbench.core.methods.matrices import matrix_shape, sides_of
from gcbench.core.methods.powersgd import by_shape, matrices_of, shapes_of, tensors_of


@dataclass(frozen=True)
class ACPSGD(Checked):
    """A rank-r approximation, one of whose two factors is updated and sent per step.

    Zhang, Zhang, Shi, Chu and Li, "Evaluation and Optimization of Gradient Compression for
    Distributed Deep Learning", ICDCS 2023 (arXiv 2306.08881), algorithm 1. Every tensor is a matrix
    M `[n, m]`, or a stack of matrices, as in PowerSGD. Starting with a random Q `[m, r]`, in turn:

        Q <- orthogonalize(Q);   P <- mean over workers of M Q
        P <- orthogonalize(P);   Q <- mean over workers of M^T P
        decode: P Q^T

    Linear in M: the update is that of the workers' mean gradient. It is a projection of that
    gradient, so that |M - P Q^T|^2 <= |M|^2. With error feedback, as in the paper, a worker's
    residual is M minus its own projection, M Q Q^T or P P^T M.

    Sends r n and r m floats per matrix in alternating steps, r = min(rank, n, m), in one
    all-reduce: half of what PowerSGD sends, without its second all-reduce.

    Differences from the paper and its code, lzhangbv/acpsgd: Gram-Schmidt or Cholesky's
    decomposition replaces their QR. A column of a factor that has become zero is drawn again, as in
    `PowerSGD` here; QR makes an arbitrary one. The first Q comes from a seed that all workers
    share; the code draws it on each worker. Vectors have a separate all-reduce, where the code adds
    them to that of the factors.
    """

    rank: Annotated[Count, example(2)]
    """columns r of the factors [PowerSGD, algorithm 1]"""
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True, turns=2)

    def values_sent(self, shape: Sequence[int]) -> float:
        n, m = sides_of(shape)
        return min(self.rank, n, m) * (n + m) / 2

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if (parts := _by_last_factor(grads, state))[1:]:
            some = [self.aggregate(part, state.select(part), comm, step) for part in parts]
            return merge(some, grads)
        ordered = by_shape(grads)
        shapes = shapes_of(ordered, self.rank)
        base, turned = self._base(ordered, shapes, state, step)
        ms = stack(matrices_of(ordered, shapes), shapes)
        own, mean = self._factors(
            None if turned else times(ms, base, shapes), ms, base, shapes, comm
        )
        updates = product(*(base, mean) if turned else (mean, base), shapes)
        return self._to_aggregated(grads, shapes, base, own, mean, turned, updates)

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        grads = given.grads
        if (parts := _by_last_factor(grads, state))[1:]:
            some = [
                self.aggregate_corrected(given._replace(grads=part), state.select(part), comm, step)
                for part in parts
            ]
            left = {name: rest for _, of_part in some for name, rest in of_part.items()}
            return merge([out for out, _ in some], grads), {name: left[name] for name in grads}
        ordered = by_shape(grads)
        shapes = shapes_of(ordered, self.rank)
        base, turned = self._base(ordered, shapes, state, step)
        residual = {k: given.residual[k] for k in ordered}
        gs, es = (matrices_of(x, shapes) for x in (ordered, residual))
        if turned:
            ms, worker_p = add(gs, es, given.alpha, shapes), None
        else:
            ms, worker_p = add_times(gs, es, given.alpha, base, shapes)
        own, mean = self._factors(worker_p, ms, base, shapes, comm)
        factors = (base, mean, base, own) if turned else (mean, base, own, base)
        updates = product_and_rest(*factors, ms, shapes)
        out = self._to_aggregated(grads, shapes, base, own, mean, turned, updates)
        return out, given.left_by(tensors_of(ms, grads))

    def _factors(
        self, worker_p: Tensor | None, ms: Stacks, base: Tensor, shapes: Shapes, comm: Comm
    ) -> tuple[Tensor, Tensor]:
        """Return each worker's P, or else its Q = M^T P, and the mean of the workers'."""
        own = transposed_times(ms, base, shapes) if worker_p is None else worker_p
        return own, comm.mean([own])[0]

    def _to_aggregated(
        self,
        grads: Grads,
        shapes: Shapes,
        base: Tensor,
        own: Tensor,
        mean: Tensor,
        turned: bool,
        updates: Stacks,
    ) -> Aggregated:
        def sent() -> Grads:
            return tensors_of(product(*(base, own) if turned else (own, base), shapes), grads)

        # The number of dimensions says which factor was sent last, as sides do not where n = m.
        parts = [q.unsqueeze(1) for q in qs_of(mean, shapes)] if turned else ps_of(mean, shapes)
        by_name = dict(zip(by_shape(grads), parts, strict=True))
        kept = State(shared={name: by_name[name] for name in grads})
        return Aggregated(tensors_of(updates, grads), sent, kept)

    def _base(
        self, ordered: Grads, shapes: Shapes, state: State, step: Step
    ) -> tuple[Tensor, bool]:
        """Return the orthonormal factor to multiply M with, and whether it is P, not Q.

        The factor is that which was sent last, P `[1, r, n]` or Q `[1, 1, r, m]`.
        """
        last = [state.shared[k] for k in ordered] if state.shared else []
        turned = bool(last) and last[0].dim() == 3
        sides = tuple([Shape(s.m, s.n, s.r) if turned else s for s in shapes])
        offsets = tuple([step.offsets[name] for name in ordered])
        base = _draw_base(step.seed, offsets, sides, next(iter(ordered.values())).device)
        if last:
            factors = [x if turned else x.squeeze(1) for x in last]
            base = restart([x.contiguous() for x in factors], base, sides)
        return orthogonalize(base, tuple([Shape(s.m, s.n, s.r) for s in sides])), turned


def _by_last_factor(grads: Grads, state: State) -> list[Grads]:
    """Return the gradients apart by the factor that was sent last.

    It is the same for all of them, but where parameters were not used in a step.
    """
    parts: dict[int, Grads] = {}
    for name, g in grads.items():
        last = state.shared.get(name)
        parts.setdefault(0 if last is None else last.dim(), {})[name] = g
    return [*parts.values()]


@lru_cache(maxsize=64)  # two entries per bucket of DDP
def _draw_base(seed: int, offsets: tuple[int, ...], shapes: Shapes, device: torch.device) -> Tensor:
    """Return the sketches of the first step, for whichever factor has m values per column."""
    names = [str(i) for i in range(len(shapes))]
    step = Step(0, seed, range(0), dict(zip(names, offsets, strict=True)))
    like = zip(names, shapes, strict=True)
    ms = {name: torch.empty(1, s.r, s.m, dtype=torch.float32, device=device) for name, s in like}
    drawn = draw_sketches(ms, max(s.r for s in shapes), step)
    return flatten({name: x.mT for name, x in drawn.items()})


def draw_sketches(ms: Grads, rank: int, step: Step) -> Grads:
    """Return a standard normal `[1, m, r]` per matrix `[w, n, m]`, the same on all workers.

    r = min(rank, n, m). ACP-SGD and `UnbiasedLowRank`, a variant of which is ACP-SGD, draw the same
    sketches.
    """
    like = {k: m.new_empty(1, m.shape[2], min(rank, *m.shape[1:])) for k, m in ms.items()}
    device = next(iter(like.values())).device
    noise = step.noise("unbiased_lowrank", sizes_of(like), device, shared=True)
    return unflatten(noise.normal(), like)


@dataclass(frozen=True)
class UnbiasedLowRank(Checked):
    """Low-rank sketches without error feedback, as in PowerSGD's text and as in its code.

    A baseline of Vogels et al., NeurIPS 2019, section 4.1 and table 1. For a matrix M `[n,
    m]` (stacks are `gcbench.core.methods.matrices`), without error feedback:

    `variant=text`: with U `[m, r]`, drawn from N(0, 1/r) again every step, the same on all workers,

        P <- mean over workers of M U;   decode: P U^T,    E[U U^T] = I so that E[M U U^T] = M

    with E||M U U^T - M||^2 = (m + 1) / r ||M||^2. Sends r n floats per matrix, since U comes from
    a shared seed.

    `variant=alternating`, with which the authors' code made the published rows: half a power
    iteration per step. This is a projection, and therefore not unbiased. ACP-SGD is the same with
    error feedback, so that the code here is `ACPSGD`. Sends r n and r m floats in alternating
    steps: r (n + m) / 2 on average.

    Both are linear in M; r = min(rank, n, m).

    Differences from the paper and its code: see `ACPSGD`.
    """

    rank: Annotated[Count, example(2)]
    """columns r of the factors [PowerSGD, algorithm 1]"""
    variant: Literal["text", "alternating"] = "text"
    """the sketch as printed, or half a power iteration a step as published [PowerSGD, section
    4.1]"""

    @property
    def properties(self) -> Properties:
        return Properties(
            unbiased=self.variant == "text",
            contractive=self.variant == "alternating",
            mean_linear=True,
            turns=2 if self.variant == "alternating" else 1,
        )

    def values_sent(self, shape: Sequence[int]) -> float:
        if self.variant == "alternating":
            return ACPSGD(self.rank).values_sent(shape)
        n, m = sides_of(shape)
        return min(self.rank, n, m) * n

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if self.variant == "alternating":
            return ACPSGD(self.rank).aggregate(grads, state, comm, step)
        ms = {k: g.reshape(-1, *matrix_shape(g)) for k, g in grads.items()}  # [w, n, m]
        sketches = draw_sketches(ms, self.rank, step)
        us = {k: u / u.shape[2] ** 0.5 for k, u in sketches.items()}  # [1, m, r]
        worker_ps = {k: m @ us[k] for k, m in ms.items()}
        ps = dict(zip(ms, comm.mean(list(worker_ps.values())), strict=True))

        def decode(factors: Grads) -> Grads:
            return {k: (p @ us[k].mT).reshape(-1, *grads[k].shape[1:]) for k, p in factors.items()}

        return Aggregated(decode(ps), lambda: decode(worker_ps), state)
