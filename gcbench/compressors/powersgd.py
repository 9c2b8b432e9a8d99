"""PowerSGD: a rank-r approximation by one step of power iteration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gcbench.codecs.low_rank import orthogonalise
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, unflatten

Memory = Literal["own", "aggregated"]


@dataclass(frozen=True)
class PowerSGD:
    """Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019,
    algorithm 1.

    Every tensor is a matrix M `[n, m]` with n its first dimension. With the same Q `[m, r]` on all workers:

        P <- mean over workers of M Q;   P <- orthogonalise(P);   Q <- mean over workers of M^T P;   decode: P Q^T

    Linear in M: the update is that of the workers' mean gradient. Sends r (n + m) floats a matrix, r = min(rank, n, m).

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
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True)

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank}: type a rank of at least 1, as in rank=2")
        if self.memory not in ("own", "aggregated"):
            raise ValueError(f"memory={self.memory}: type memory=own or memory=aggregated")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        start = self._start(grads, state, step)
        stacks = _stacks(grads)
        ms = [_stack(grads, names) for names in stacks]  # [w, k, n, m]
        qs = [torch.stack([start[name] for name in names], dim=1) for names in stacks]  # [1, k, m, r]

        ps = comm.mean([m @ q for m, q in zip(ms, qs, strict=True)])
        ps = [orthogonalise(p) for p in ps]
        own_qs = [m.mT @ p for m, p in zip(ms, ps, strict=True)]
        qs = comm.mean(own_qs)
        update = _decode(ps, qs, stacks, grads)

        def sent() -> Grads:
            return update if self.memory == "aggregated" else _decode(ps, own_qs, stacks, grads)

        shared = {k: q[:, i] for names, q in zip(stacks, qs, strict=True) for i, k in enumerate(names)}
        return Aggregated(update, sent, State(shared=shared))

    def _start(self, grads: Grads, state: State, step: Step) -> Grads:
        """`{name: Q}`, `[1, m, r]` each."""
        fresh = self._random_qs(grads, step)
        if not (self.warm_start and state.shared):
            return fresh
        largest = {k: q.abs().amax(-2, keepdim=True) for k, q in state.shared.items()}
        return {k: torch.where(largest[k] > 0, q / largest[k], fresh[k]) for k, q in state.shared.items()}

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
