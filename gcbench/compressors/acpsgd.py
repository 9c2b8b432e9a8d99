"""ACP-SGD: half a step of PowerSGD's power iteration, and one all-reduce, a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.low_rank import orthogonalize
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, sizes_of, unflatten
from gcbench.compressors.powersgd import matrix_shape
from gcbench.knobs import Checked
from gcbench.method_settings import Rank


@dataclass(frozen=True)
class ACPSGD(Checked):
    """One of the two factors of a rank-r approximation, by turns.

    Zhang, Zhang, Shi, Chu and Li, "Evaluation and Optimization of Gradient Compression for
    Distributed Deep Learning", ICDCS 2023 (arXiv 2306.08881), algorithm 1. Every tensor is a matrix
    M `[n, m]`, as in PowerSGD. From a random Q `[m, r]` on, by turns:

        Q <- orthogonalize(Q);   P <- mean over workers of M Q
        P <- orthogonalize(P);   Q <- mean over workers of M^T P
        decode: P Q^T

    Linear in M: the update is that of the workers' mean gradient. A projection of it, so that
    |M - P Q^T|^2 <= |M|^2. With error feedback, as in the paper, a worker's residual keeps M less
    its own projection, M Q Q^T or P P^T M.

    Sends r n and r m floats a matrix in turn, r = min(rank, n, m), in one all-reduce: half of what
    PowerSGD sends, and its second round not at all.

    Differences from the paper and its code, lzhangbv/acpsgd: a factor column that has become zero
    is drawn anew, as in our PowerSGD, where its QR decomposition makes an arbitrary one; Gram-
    Schmidt stands for that. The first Q is the same on all workers by its seed; the code draws it
    on each of them. Vectors travel in an all-reduce of their own, not in that of the factors.
    """

    rank: Rank
    properties: ClassVar[Properties] = Properties(contractive=True, mean_linear=True, turns=2)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        matrices = {k: g.reshape(-1, *matrix_shape(g)) for k, g in grads.items()}  # [w, n, m]
        ranks = {k: min(self.rank, *m.shape[1:]) for k, m in matrices.items()}
        # The state has the factor that was sent last, and its shape says which of the two that is:
        # P `[1, n, r]`, or Q^T `[1, r, m]`. Where both are the same, n = m = r, so does either.
        turned = {
            k: bool(state.shared) and state.shared[k].shape[1:] == (m.shape[1], ranks[k])
            for k, m in matrices.items()
        }
        ms = {k: m.mT if turned[k] else m for k, m in matrices.items()}
        bases = self._bases(ms, ranks, turned, state, step)
        worker_factors = {k: m @ bases[k] for k, m in ms.items()}
        factors = dict(zip(ms, comm.mean(list(worker_factors.values())), strict=True))

        def decode(factors: Grads) -> Grads:
            products = {k: factor @ bases[k].mT for k, factor in factors.items()}
            return {
                k: (x.mT if turned[k] else x).reshape(-1, *grads[k].shape[1:])
                for k, x in products.items()
            }

        kept = {k: f.mT.contiguous() if turned[k] else f for k, f in factors.items()}
        return Aggregated(decode(factors), lambda: decode(worker_factors), State(shared=kept))

    def _bases(
        self, ms: Grads, ranks: dict[str, int], turned: dict[str, bool], state: State, step: Step
    ) -> Grads:
        """Return the orthonormal factor `[1, m, r]` of each matrix `[w, n, m]`."""
        bases: dict[str, Tensor] = {}
        for k, drawn in draw_sketches(ms, ranks, step).items():
            last = drawn
            if state.shared:
                last = state.shared[k] if turned[k] else state.shared[k].mT.contiguous()
            bases[k] = orthogonalize(torch.where(last.any(1, keepdim=True), last, drawn))
        return bases


def draw_sketches(ms: Grads, ranks: Mapping[str, int], step: Step) -> Grads:
    """Return a random `[1, m, r]` for each matrix `[w, n, m]`, alike on all workers, from N(0, 1).

    They are those that PowerSGD's authors published with the unbiased estimator, for both methods.
    """
    like = {k: m.new_empty(1, m.shape[2], ranks[k]) for k, m in ms.items()}
    device = next(iter(like.values())).device
    noise = step.noise("unbiased_lowrank", sizes_of(like), device, shared=True)
    return unflatten(noise.normal(), like)
