"""PowerSGD: a rank-r approximation by a step of power iteration, by several, or the best there is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gcbench.codecs.low_rank import orthogonalise, product, subtract_product_, svd, times, transposed_times
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, unflatten

Memory = Literal["own", "aggregated"]
Factors = tuple[Grads, Grads, Grads]
"""P, then Q: each worker's own `[w, ...]`, and their means."""


@dataclass(frozen=True)
class PowerSGD:
    """Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019,
    algorithm 1.

    Every tensor is a matrix M `[n, m]` with n its first dimension. With the same Q `[m, r]` on all workers:

        P <- mean over workers of M Q;   P <- orthogonalise(P);   Q <- mean over workers of M^T P;   decode: P Q^T

    Linear in M: the update is that of the workers' mean gradient. Sends r (n + m) floats a matrix, r = min(rank, n, m).

    The "best approximation" of table 2 is printed without a recipe. `iterations=k` repeats the above k times a step, each from
    the last Q, and sends k r (n + m) floats; the authors' row is `iterations=3 warm_start=false`, their "two extra" iterations.
    `svd=true` is what these approach: P are the first r left singular vectors of the mean of M, and Q = mean of M^T P. It sends
    all n m floats of M, as the singular vectors of a mean are not to be had from those of the workers.

    Differences from the paper: P of one shape are orthonormalised as one batch, each on its own. A column
    of Q that has become zero (a gradient that was exactly zero) is drawn anew, where the paper's warm start would keep it
    zero for ever; the others are scaled to a largest entry of 1, which leaves P as it is but keeps M Q from under- and
    overflowing. `memory=own` subtracts the worker's own projection P P^T M, as algorithm 2 is printed; `aggregated`
    subtracts the update, as the authors' code does. The updates are the same up to rounding; with `aggregated` the memories
    of workers drift apart like a random walk.
    """

    rank: int
    warm_start: bool = True  # reuse the last Q; else draw it anew every step
    memory: Memory = "own"
    iterations: int = 1  # power iterations a step
    svd: bool = False  # the best approximation instead, from the dense mean
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True)

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank}: type a rank of at least 1, as in rank=2")
        if self.memory not in ("own", "aggregated"):
            raise ValueError(f"memory={self.memory}: type memory=own or memory=aggregated")
        if self.iterations < 1:
            raise ValueError(f"iterations={self.iterations}: type at least 1 power iteration a step, as in iterations=3")
        if self.svd and self.iterations > 1:
            raise ValueError(f"iterations={self.iterations} means nothing with svd=true; type only one of them")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        ms = {k: g.reshape(-1, *matrix_shape(g)) for k, g in grads.items()}  # [w, n, m]
        ps, own_qs, qs = self._best(ms, comm) if self.svd else self._iterated(ms, self._start(grads, state, step), comm)
        update = {k: product(ps[k], qs[k]).view(-1, *g.shape[1:]) for k, g in grads.items()}

        def sent() -> Grads:
            if self.memory == "aggregated":
                return update
            return {k: product(ps[k], own_qs[k]).view(g.shape) for k, g in grads.items()}

        def left() -> Grads:
            return {k: subtract_product_(ms[k], ps[k], own_qs[k]).view(g.shape) for k, g in grads.items()}

        return Aggregated(update, sent, State(shared=qs), left=left if self.memory == "own" else None)

    def _iterated(self, ms: Grads, start: Grads, comm: Comm) -> Factors:
        qs = start  # [1, m, r]
        for i in range(self.iterations):
            if i > 0:
                qs = {k: _restarted(q, start[k]) for k, q in qs.items()}
            ps = _orthogonalised(_mean({k: times(m, qs[k]) for k, m in ms.items()}, comm))
            own_qs = {k: transposed_times(m, ps[k]) for k, m in ms.items()}
            qs = _mean(own_qs, comm)
        return ps, own_qs, qs

    def _best(self, ms: Grads, comm: Comm) -> Factors:
        means = _mean(ms, comm)
        ps = {k: svd(m.double())[0][..., : self.rank].to(m.dtype) for k, m in means.items()}
        own_qs, qs = ({k: transposed_times(m, ps[k]) for k, m in x.items()} for x in (ms, means))
        return ps, own_qs, qs

    def _start(self, grads: Grads, state: State, step: Step) -> Grads:
        """`{name: Q}`, `[1, m, r]` each."""
        fresh = self._random_qs(grads, step)
        if not (self.warm_start and state.shared):
            return fresh
        return {k: _restarted(q, fresh[k]) for k, q in state.shared.items()}

    def _random_qs(self, grads: Grads, step: Step) -> Grads:
        """Standard normal, the same on all workers."""
        shapes = []
        for name, g in grads.items():
            n, m = matrix_shape(g)
            shapes.append((name, step.offsets[name], m, min(self.rank, n, m)))
        number = 0 if self.warm_start else step.number  # one draw serves a whole run
        return _draw_qs(step.seed, number, tuple(shapes), next(iter(grads.values())).device)


@lru_cache(maxsize=64)  # buckets
def _draw_qs(seed: int, number: int, shapes: tuple[tuple[str, int, int, int], ...], device: torch.device) -> Grads:
    step = Step(number, seed, range(0), {name: offset for name, offset, _, _ in shapes})
    sizes = {name: m * r for name, _, m, r in shapes}
    like = {name: torch.empty(1, m, r, device=device) for name, _, m, r in shapes}
    return unflatten(step.noise("powersgd.q", sizes, device, shared=True).normal(), like)


def _restarted(q: Tensor, fresh: Tensor) -> Tensor:
    """Columns scaled to a largest entry of 1; `fresh` ones for those that have become zero."""
    largest = q.abs().amax(-2, keepdim=True)
    return torch.where(largest > 0, q / largest, fresh)


def matrix_shape(g: Tensor) -> tuple[int, int]:
    """n and m of a `[w, n, ...]` gradient as a matrix; a vector is a column."""
    n = g.shape[1] if g.dim() > 1 else 1
    return n, g[0].numel() // n


def _mean(tensors: Grads, comm: Comm) -> Grads:
    return dict(zip(tensors, comm.mean(list(tensors.values())), strict=True))


def _orthogonalised(ps: Grads) -> Grads:
    """Matrices of one shape at once."""
    by_shape: dict[torch.Size, list[str]] = {}
    for name, p in ps.items():
        by_shape.setdefault(p.shape, []).append(name)
    done = {
        k: p
        for names in by_shape.values()
        for k, p in zip(names, orthogonalise(torch.stack([ps[k] for k in names], dim=1)).unbind(1), strict=True)
    }
    return {k: done[k] for k in ps}
