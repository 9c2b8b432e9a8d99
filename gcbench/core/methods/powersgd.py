"""PowerSGD: low-rank approximation by power iteration, or the best one, by an SVD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from gcbench.core.codecs.low_rank import Shape, Shapes, svd
from gcbench.core.codecs.power_iteration import (
    Stacks,
    add_times,
    orthogonalize,
    product,
    product_and_rest,
    qs_of,
    restart,
    stack,
    times,
    transposed_times,
    unstack,
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
    sizes_of,
    unflatten,
)
from gcbench.core.fields import WITH_FEEDBACK, Checked, Count, Needs, example
from gcbench.core.methods.matrices import matrix_shape, sides_of


def step_by_step(ms: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step for one matrix in plain PyTorch, to read first; `PowerSGD` has the same results.

    Args:
        ms: the matrices of all workers `[w, n, m]`, each a gradient plus what was not sent before.
        q: the factor Q `[m, r]` that all workers have from the last step.

    Returns:
        The update `[n, m]`, what each worker keeps for the next step `[w, n, m]`, and the next Q.
    """
    p = (ms @ q).mean(0)  # an all-reduce of r n floats
    p, _ = torch.linalg.qr(p)  # orthonormal columns
    worker_qs = ms.mT @ p
    q = worker_qs.mean(0)  # an all-reduce of r m floats
    return p @ q.T, ms - p @ worker_qs.mT, q


class Factors(NamedTuple):
    """The factors of all matrices, transposed as in `power_iteration`."""

    p: Tensor
    worker_q: Tensor  # each worker's own
    q: Tensor  # the mean of the workers'


@dataclass(frozen=True)
class PowerSGD(Checked):
    """A rank-r approximation by a step of power iteration.

    Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, algorithm 1.

    Every tensor is a matrix M `[n, m]` with n its first dimension, or a stack of matrices
    (`gcbench.core.methods.matrices`). With the same Q `[m, r]` on all workers:

        P <- mean over workers of M Q;   P <- orthogonalize(P);   Q <- mean over workers of M^T P
        decode: P Q^T

    Linear in M: the update is that of the workers' mean gradient. Sends r (n + m) floats per
    matrix, r = min(rank, n, m).

    The paper does not say how to compute the "best approximation" of table 2. `iterations=k`
    repeats the above k times per step, each time from the last Q, and sends k r (n + m) floats; the
    authors' row is `iterations=3 warm_start=false`, with their "two extra" iterations. `svd=true`
    is what these approach: P has the first r left singular vectors of the mean of M, and Q = mean
    of M^T P. It sends all n m floats of M, because the singular vectors of a mean cannot be
    computed from those of the workers.

    Differences from the paper: a column of Q that has become zero (because a gradient was exactly
    zero) is drawn again, where the paper's warm start would keep it zero forever. The other columns
    are scaled to a largest entry of 1, which leaves P unchanged but keeps M Q from underflow and
    overflow. `residual=own` subtracts the worker's own projection P P^T M, as in algorithm 2;
    `aggregated` subtracts the update, as in the authors' code. The updates are the same up to
    rounding; with `aggregated`, the workers' residuals drift apart like a random walk.
    """

    rank: Annotated[Count, example(2)]
    """columns r of the factors [PowerSGD, algorithm 1]"""
    warm_start: Annotated[bool, Needs("svd", (False,))] = True
    """true: start from the last step's factors; false: from random ones [PowerSGD, section 4.2]"""
    residual: Annotated[Literal["own", "aggregated"], WITH_FEEDBACK] = "own"
    """what the error-feedback residual leaves out: the worker's own projection, or the aggregated
    update [PowerSGD, algorithm 2, and the authors' code]"""
    iterations: Annotated[Count, example(3)] = 1
    """power iterations a step, each sent [PowerSGD, table 2]"""
    svd: bool = False
    """true: send whole gradients and keep the best rank-r approximation of their mean"""
    ranks: Mapping[str, int] | None = None  # of each matrix, where they differ
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.svd and self.iterations > 1:
            raise ValueError(
                f"iterations={self.iterations} has no effect with svd=true; type only one of them"
            )

    def shapes(self, grads: Grads) -> Shapes:
        """Return the shapes of matrices and of their factors."""
        shapes = shapes_of(grads, self.rank)
        if self.ranks is None:
            return shapes
        return tuple([s._replace(r=self.ranks[k]) for k, s in zip(grads, shapes, strict=True)])

    def values_sent(self, shape: Sequence[int]) -> float:
        n, m = sides_of(shape)
        return n * m if self.svd else self.iterations * min(self.rank, n, m) * (n + m)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        ordered = by_shape(grads)
        shapes = self.shapes(ordered)
        q = self._start(ordered, shapes, state, step)
        ms = stack(matrices_of(ordered, shapes), shapes)
        if self.svd:
            factors = self._best(ms, shapes, comm)
        else:
            factors = self._iterate(ms, times(ms, q, shapes), q, shapes, comm)
        updates = product(factors.p, factors.q, shapes)
        return self._to_aggregated(grads, shapes, factors, updates)

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        grads = given.grads
        ordered = by_shape(grads)
        shapes = self.shapes(ordered)
        q = self._start(ordered, shapes, state, step)
        residual = {k: given.residual[k] for k in ordered}
        gs, es = (matrices_of(x, shapes) for x in (ordered, residual))
        ms, p = add_times(gs, es, given.alpha, q, shapes)
        if self.svd:
            factors = self._best(ms, shapes, comm)
        else:
            factors = self._iterate(ms, p, q, shapes, comm)
        sent_q = factors.q if self.residual == "aggregated" else factors.worker_q
        updates = product_and_rest(factors.p, factors.q, factors.p, sent_q, ms, shapes)
        out = self._to_aggregated(grads, shapes, factors, updates)
        return out, given.left_by(tensors_of(ms, grads))

    def _to_aggregated(
        self, grads: Grads, shapes: Shapes, factors: Factors, updates: Stacks
    ) -> Aggregated:
        update = tensors_of(updates, grads)

        def sent() -> Grads:
            if self.residual == "aggregated":
                return update
            return tensors_of(product(factors.p, factors.worker_q, shapes), grads)

        return Aggregated(update, sent, State(shared=qs_by_name(factors.q, shapes, grads)))

    def _iterate(
        self, ms: Stacks, worker_p: Tensor, start: Tensor, shapes: Shapes, comm: Comm
    ) -> Factors:
        q = start
        for i in range(self.iterations):
            if i > 0:
                worker_p = times(ms, restart(qs_of(q, shapes), start, shapes), shapes)
            p = orthogonalize(comm.mean([worker_p])[0], shapes)
            worker_q = transposed_times(ms, p, shapes)
            q = comm.mean([worker_q])[0]
        return Factors(p, worker_q, q)

    def _best(self, ms: Stacks, shapes: Shapes, comm: Comm) -> Factors:
        means = comm.mean(unstack(ms))
        ps = [
            svd(m.double())[0][..., : s.r].to(m.dtype).mT.flatten(1)
            for m, s in zip(means, shapes, strict=True)
        ]
        p = torch.cat(ps, dim=1)
        q = transposed_times(stack(means, shapes), p, shapes)
        return Factors(p, transposed_times(ms, p, shapes), q)

    def _start(self, grads: Grads, shapes: Shapes, state: State, step: Step) -> Tensor:
        if self.warm_start:
            return continue_q(state.shared, grads, shapes, step)
        return draw_q(grads, shapes, step, step.number)


def continue_q(last: Grads, grads: Grads, shapes: Shapes, step: Step) -> Tensor:
    """Return the last step's Q to start from, with zero columns replaced by random ones."""
    fresh = draw_q(grads, shapes, step, number=0)  # the same draw in a whole run
    return restart([last[k].contiguous() for k in grads], fresh, shapes) if last else fresh


def draw_q(grads: Grads, shapes: Shapes, step: Step, number: int) -> Tensor:
    """Return the standard normal Q of step `number`, the same on all workers."""
    offsets = tuple([step.offsets[name] for name in grads])
    return _draw_q(step.seed, number, offsets, shapes, next(iter(grads.values())).device)


# One entry per bucket of DDP, since a warm start uses the same draw every step.
@lru_cache(maxsize=64)
def _draw_q(
    seed: int, number: int, offsets: tuple[int, ...], shapes: Shapes, device: torch.device
) -> Tensor:
    names = [str(i) for i in range(len(shapes))]
    step = Step(number, seed, range(0), dict(zip(names, offsets, strict=True)))
    like = {
        name: torch.empty(1, s.m, s.r, dtype=torch.float32, device=device)
        for name, s in zip(names, shapes, strict=True)
    }
    drawn = unflatten(step.noise("powersgd.q", sizes_of(like), device, shared=True).normal(), like)
    return flatten({k: q.mT for k, q in drawn.items()})


def by_shape(grads: Grads) -> Grads:
    """Return the gradients, sorted so that matrices of the same shape are adjacent."""
    return dict(sorted(grads.items(), key=lambda item: matrix_shape(item[1])))


def shapes_of(grads: Grads, rank: int) -> Shapes:
    """Return the shape of each gradient as a matrix, with r = min(rank, n, m)."""
    sides = map(matrix_shape, grads.values())
    return tuple([Shape(n, m, min(rank, n, m)) for n, m in sides])


def matrices_of(grads: Grads, shapes: Shapes) -> list[Tensor]:
    """Return gradients `[w, n, ...]` as matrices `[w, n, m]`, contiguous for each worker."""
    matrices = [g.reshape(-1, s.n, s.m) for g, s in zip(grads.values(), shapes, strict=True)]
    return [m if m[0].is_contiguous() else m.contiguous() for m in matrices]


def tensors_of(stacks: Stacks, grads: Grads) -> Grads:
    """Return stacks, in the order of `by_shape`, as tensors with names and shapes of `grads`."""
    matrices = dict(zip(by_shape(grads), unstack(stacks), strict=True))
    return {name: matrices[name].view(-1, *g.shape[1:]) for name, g in grads.items()}


def qs_by_name(q: Tensor, shapes: Shapes, grads: Grads) -> Grads:
    """Return the factors Q, which are in the order of `by_shape`, by the names of `grads`."""
    qs = dict(zip(by_shape(grads), qs_of(q, shapes), strict=True))
    return {name: qs[name] for name in grads}
