"""PowerSGD: a rank-r approximation by a step of power iteration, by several, or the best there is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gcbench.codecs.low_rank import orthogonalise, svd
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, unflatten

Memory = Literal["own", "aggregated"]
Factors = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""P of every stack, then Q: each worker's own `[w, ...]`, and their means."""


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

    Differences from the paper: matrices of one shape are multiplied as one batch, each orthonormalised on its own. A column
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
        stacks = _stacks(grads)
        ms = [_stack(grads, names) for names in stacks]  # [w, k, n, m]
        if self.svd:
            ps, own_qs, qs = self._best(ms, comm)
        else:
            start = self._start(grads, state, step)
            ps, own_qs, qs = self._iterated(ms, [torch.stack([start[k] for k in names], dim=1) for names in stacks], comm)
        update = _decode(ps, qs, stacks, grads)

        def sent() -> Grads:
            return update if self.memory == "aggregated" else _decode(ps, own_qs, stacks, grads)

        shared = {k: q[:, i] for names, q in zip(stacks, qs, strict=True) for i, k in enumerate(names)}
        return Aggregated(update, sent, State(shared=shared))

    def _iterated(self, ms: list[Tensor], qs: list[Tensor], comm: Comm) -> Factors:
        start = qs  # [1, k, m, r]
        for i in range(self.iterations):
            if i > 0:
                qs = [_restarted(q, first) for q, first in zip(qs, start, strict=True)]
            ps = comm.mean([m @ q for m, q in zip(ms, qs, strict=True)])
            ps = [orthogonalise(p) for p in ps]
            own_qs = [m.mT @ p for m, p in zip(ms, ps, strict=True)]
            qs = comm.mean(own_qs)
        return ps, own_qs, qs

    def _best(self, ms: list[Tensor], comm: Comm) -> Factors:
        means = comm.mean(ms)
        ps = [svd(m.double())[0][..., : self.rank].to(m.dtype) for m in means]
        own_qs, qs = ([m.mT @ p for m, p in zip(x, ps, strict=True)] for x in (ms, means))
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


@lru_cache(maxsize=2)
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


def _stacks(grads: Grads) -> list[list[str]]:
    """Names of parameters whose matrices have one shape."""
    by_shape: dict[tuple[int, int], list[str]] = {}
    for name, g in grads.items():
        by_shape.setdefault(matrix_shape(g), []).append(name)
    return list(by_shape.values())


def _stack(grads: Grads, names: list[str]) -> Tensor:
    """`[w, k, n, m]`; a single matrix is not copied."""
    matrices = [grads[k].reshape(-1, *matrix_shape(grads[k])) for k in names]
    return matrices[0].unsqueeze(1) if len(names) == 1 else torch.stack(matrices, dim=1)


def _decode(ps: list[Tensor], qs: list[Tensor], stacks: list[list[str]], like: Grads) -> Grads:
    """`P Q^T` of every stack, back under the parameters' names and in their order."""
    parts = {
        k: matrix.view(-1, *like[k].shape[1:])
        for names, p, q in zip(stacks, ps, qs, strict=True)
        for k, matrix in zip(names, (p @ q.mT).unbind(1), strict=True)
    }
    return {k: parts[k] for k in like}
