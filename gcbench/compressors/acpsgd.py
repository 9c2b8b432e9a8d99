"""ACP-SGD: half of PowerSGD's power iteration, and one all-reduce, per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.low_rank import orthogonalize
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, sizes_of, unflatten
from gcbench.compressors.matrices import matrix_shape, sides_of
from gcbench.knobs import Checked
from gcbench.settings.compressor import Rank


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

    Differences from the paper and its code, lzhangbv/acpsgd: Gram-Schmidt replaces their QR
    decomposition. A column of a factor that has become zero is drawn again, as in `PowerSGD` here;
    QR makes an arbitrary one. The first Q comes from a seed that all workers share; the code draws
    it on each worker. Vectors have a separate all-reduce, where the code adds them to that of the
    factors.
    """

    rank: Rank
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True, turns=2)

    def values_sent(self, shape: Sequence[int]) -> float:
        n, m = sides_of(shape)
        return min(self.rank, n, m) * (n + m) / 2

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        matrices = {k: g.reshape(-1, *matrix_shape(g)) for k, g in grads.items()}  # [w, n, m]
        # The state has the factor that was sent last, P `[1, n, r]` or Q `[1, 1, m, r]`: the
        # number of dimensions says which, as the sides do not where n = m.
        turned = {k: bool(state.shared) and state.shared[k].dim() == 3 for k in matrices}
        ms = {k: m.mT if turned[k] else m for k, m in matrices.items()}
        bases = self._bases(ms, turned, state, step)
        worker_factors = {k: m @ bases[k] for k, m in ms.items()}
        factors = dict(zip(ms, comm.mean(list(worker_factors.values())), strict=True))

        def decode(factors: Grads) -> Grads:
            products = {k: factor @ bases[k].mT for k, factor in factors.items()}
            return {
                k: (x.mT if turned[k] else x).reshape(-1, *grads[k].shape[1:])
                for k, x in products.items()
            }

        kept = {k: f.unsqueeze(1) if turned[k] else f for k, f in factors.items()}
        return Aggregated(decode(factors), lambda: decode(worker_factors), State(shared=kept))

    def _bases(self, ms: Grads, turned: dict[str, bool], state: State, step: Step) -> Grads:
        """Return the orthonormal factor `[1, m, r]` to multiply each matrix `[w, n, m]` with."""
        bases: dict[str, Tensor] = {}
        for k, drawn in draw_sketches(ms, self.rank, step).items():
            last = drawn
            if state.shared:
                last = state.shared[k] if turned[k] else state.shared[k].squeeze(1)
            bases[k] = orthogonalize(torch.where(last.any(1, keepdim=True), last, drawn))
        return bases


def draw_sketches(ms: Grads, rank: int, step: Step) -> Grads:
    """Return a standard normal `[1, m, r]` per matrix `[w, n, m]`, the same on all workers.

    r = min(rank, n, m). ACP-SGD and `UnbiasedLowRank`, a variant of which is ACP-SGD, draw the same
    sketches.
    """
    like = {k: m.new_empty(1, m.shape[2], min(rank, *m.shape[1:])) for k, m in ms.items()}
    device = next(iter(like.values())).device
    noise = step.noise("unbiased_lowrank", sizes_of(like), device, shared=True)
    return unflatten(noise.normal(), like)
