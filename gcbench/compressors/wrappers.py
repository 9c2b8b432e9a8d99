"""What goes around a method. Fixed order, outermost first: norm clipping, dense warm-up, small tensors set aside, memory,
sigma clipping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Compressor, Correcting, Grads, Properties, State, Step, sizes_of
from gcbench.compressors.dense import Dense


@dataclass(frozen=True)
class NormClipping:
    """Scales each worker's whole gradient down to a 2-norm of `clip_norm`."""

    inner: Compressor
    clip_norm: float

    @property
    def properties(self) -> Properties:
        return Properties(scope="global")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        # Norms rather than sums of squares, whose rounding would depend on how many rows this process holds.
        norms = [torch.linalg.vector_norm(g.reshape(g.shape[0], -1), dim=1) for g in grads.values()]
        norm = torch.linalg.vector_norm(torch.stack(norms, dim=1), dim=1)  # [w]
        factor = (self.clip_norm / (norm + 1e-6)).clamp_max(1)  # as torch.nn.utils.clip_grad_norm_
        clipped = {k: g * _per_row(factor, g) for k, g in grads.items()}
        return self.inner.aggregate(clipped, state, comm, step)


@dataclass(frozen=True)
class DenseWarmup:
    """Sends gradients whole for the first `dense_steps` steps."""

    inner: Compressor
    dense_steps: int

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if step.number < self.dense_steps:
            return Dense().aggregate(grads, state, comm, step)
        return self.inner.aggregate(grads, state, comm, step)


@dataclass(frozen=True)
class SmallTensorsWhole:
    """Tensors of fewer than `min_size` values, or of fewer than `min_dims` dimensions, travel in fp32 by an all-reduce."""

    inner: Compressor
    min_size: int = 0
    min_dims: int = 0

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        sizes = sizes_of(grads)
        whole = {k: g for k, g in grads.items() if sizes[k] < self.min_size or g.dim() - 1 < self.min_dims}
        rest = {k: g for k, g in grads.items() if k not in whole}
        update = dict(zip(whole, comm.mean(list(whole.values())), strict=True)) if whole else {}
        if not rest:
            return Aggregated(update, lambda: whole, state)
        inner = self.inner.aggregate(rest, state, comm, step)
        bound, whole_bits = inner.shannon_bits, 32 * sum(sizes[k] for k in whole)
        return Aggregated(
            _ordered({**update, **inner.update}, grads),
            lambda: _ordered({**whole, **inner.sent()}, grads),
            inner.state,
            bound and (lambda: bound() + whole_bits),
        )


@dataclass(frozen=True)
class ErrorFeedback:
    """Memory of what was not sent, for all methods.

        corrected = grad + alpha memory;   memory <- beta memory + grad - sent(corrected)

    so that sent + memory' = grad + beta memory. alpha = beta = 1 is error feedback as in PowerSGD, algorithm 2 (Stich et al.
    2018, Karimireddy et al. 2019); other values are ECQ-SGD's (Wu et al. 2018, equations 6 and 7); alpha = 0 leaves the
    method as it is.
    """

    inner: Compressor
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def properties(self) -> Properties:
        return Properties(mean_linear=self.inner.properties.mean_linear, scope=self.inner.properties.scope)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        memory = state.per_worker or {k: torch.zeros_like(g) for k, g in grads.items()}
        inner_state = state.inner or State()
        if isinstance(self.inner, Correcting):
            out, left = self.inner.aggregate_corrected(grads, memory, self.alpha, inner_state, comm, step)
        else:
            corrected = {k: torch.add(g, memory[k], alpha=self.alpha) for k, g in grads.items()}
            out = self.inner.aggregate(corrected, inner_state, comm, step)
            left = {k: corrected[k] - sent for k, sent in out.sent().items()}
        if self.alpha != self.beta:
            left = {k: torch.add(x, memory[k], alpha=self.beta - self.alpha) for k, x in left.items()}
        return Aggregated(out.update, out.sent, State(per_worker=left, inner=out.state), out.shannon_bits)


@dataclass(frozen=True)
class SigmaClipping:
    """Clips every value to `clip_sigma` standard deviations of its tensor, each worker's own (Wen et al. 2017, TernGrad).

    The deviation is from zero (the root mean square), around which values are clipped: from the mean, a tensor of one value,
    or of equal ones, would have none and lose its whole gradient.
    """

    inner: Compressor
    clip_sigma: float

    @property
    def properties(self) -> Properties:
        return Properties(contractive=self.inner.properties.contractive, scope=self.inner.properties.scope)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        clipped = {}
        for name, g in grads.items():
            sigma = torch.linalg.vector_norm(g.reshape(g.shape[0], -1), dim=1) / g[0].numel() ** 0.5
            limit = _per_row(self.clip_sigma * sigma, g)
            clipped[name] = g.clamp(-limit, limit)
        return self.inner.aggregate(clipped, state, comm, step)


def _per_row(x: Tensor, like: Tensor) -> Tensor:
    """`[w]` shaped to multiply `[w, ...]`."""
    return x.view(-1, *[1] * (like.dim() - 1))


def _ordered(grads: Grads, like: Grads) -> Grads:
    return {k: grads[k] for k in like}
