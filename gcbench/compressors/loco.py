"""LoCo: rounding to the nearest level, and a residual in 8 bits that is reset periodically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.one_pass import Kinds
from gcbench.codecs.quantize import max_norm
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Compressor, Grads, Properties, State, Step
from gcbench.compressors.bucketed import Parameters
from gcbench.compressors.quantizers import SignedGridQuantizer
from gcbench.compressors.wrappers import ErrorFeedback
from gcbench.knobs import Checked
from gcbench.settings.wrappers import Alpha, ResetSteps

_LARGEST = 127  # the largest code of a residual, in a signed byte
_BLOCK = 512  # how many values of a residual share a scale


@dataclass(frozen=True)
class NearestLevel(SignedGridQuantizer):
    """Rounding to the nearest of evenly spaced levels, with one scale per bucket: the code of LoCo.

    For a bucket v with scale m = max|v_i| and s levels above zero:

        Q(v_i) = (m / s) round(s v_i / m)

    Zero and m are levels, so that |Q(v_i) - v_i| <= |v_i|, and the error of Q(v) is below |v| for
    buckets of any size. Deterministic and biased.

    Sends ceil(log2(2 s + 1)) bits per value and one float32 scale per bucket.
    """

    random: ClassVar[bool] = False
    kinds: ClassVar[Kinds] = Kinds("largest", "nearest", "grid")
    properties: ClassVar[Properties] = Properties(contractive=True)

    def scale(self, v: Tensor, d: Tensor | None = None) -> Tensor:
        return max_norm(v)

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        scale = parameters[0]
        place = v / torch.where(scale > 0, scale, 1) * float(self.levels)
        # A NaN may get any code, but the code must be in range, as its neighbors share its words.
        return place.round().to(torch.int32).clamp(-self.levels, self.levels) + self.levels


@dataclass(frozen=True)
class LoCo(Checked):
    """Error feedback with a moving average of coding errors, kept in 8 bits.

    Xie, Lin, Toh and Zhou, "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training",
    TPAMI 2025, algorithm 1. With worker i's gradient g and its residual e, beta in (0, 1]:

        h = g + e;   sends Q(h);   e <- round to 8 bits of (1 - beta) e + beta (h - Q(h))
        e <- 0 every T steps

    With E = e / beta this is ErrorFeedback with alpha = beta and a weight of 1 for the old E:

        h = g + alpha E;   E <- round to 8 bits of E + g - Q(h)

    E is what is kept, in one byte per value, with one float32 scale per 512 values of a tensor.

    Sends what Q sends; in `compressor=loco`, Q is `NearestLevel` with 4 bits, as in the paper.

    Differences from the paper: the scale is the largest magnitude of a bucket for Q, and of 512
    values for E, where the paper has two constants for the whole run. Every worker gathers all
    codes; the paper's all-to-all of shards, averaged in full precision, is `exchange=scatter`.

    Differences from the published code for ZeRO++ in DeepSpeed (err_beta = 1 - beta): its levels
    are -8 to 7 times max / 8, so that the largest positive value loses an eighth, where ours are -7
    to 7 times max / 7. It has one scale of e per group of codes, about a row of a matrix; sends
    vectors uncompressed; codes the mean of a node again for other nodes, with a separate residual;
    and lets T count tensors, not steps.
    """

    inner: Compressor
    alpha: Alpha = 1.0  # the paper's beta
    reset_steps: ResetSteps | None = None  # T; None: never

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return Properties(scope=inner.scope, divisible=inner.divisible)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        scales = state.inner or State()
        residual = {
            k: _from_bytes(codes, scales.per_worker[k]) for k, codes in state.per_worker.items()
        }
        feedback = ErrorFeedback(self.inner, self.alpha)
        out = feedback.aggregate(grads, State({}, residual, scales.inner), comm, step)
        left = out.state.per_worker
        if self.reset_steps and (step.number + 1) % self.reset_steps == 0:
            left = {k: torch.zeros_like(x) for k, x in left.items()}
        rounded = {k: _to_bytes(x) for k, x in left.items()}
        return out._replace(
            state=State(
                per_worker={k: codes for k, (codes, _) in rounded.items()},
                inner=State(
                    per_worker={k: scale for k, (_, scale) in rounded.items()},
                    inner=out.state.inner,
                ),
            )
        )


def _to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return values `[w, ...]` rounded to int8, and one scale per 512 of them, `[w, blocks]`."""
    blocks = _in_blocks(x)
    scales = max_norm(blocks) / _LARGEST
    codes = (blocks / torch.where(scales > 0, scales, 1).unsqueeze(-1)).round()
    codes = codes.clamp(-_LARGEST, _LARGEST).to(torch.int8)
    return codes.flatten(1)[:, : x[0].numel()].view_as(x), scales


def _from_bytes(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the values that `_to_bytes` rounded."""
    values = _in_blocks(codes) * scales.unsqueeze(-1)
    return values.flatten(1)[:, : codes[0].numel()].view_as(codes)


def _in_blocks(x: Tensor) -> Tensor:
    """Return `[w, ...]` as `[w, blocks, 512]`, padded with zeros."""
    rows = x.reshape(len(x), -1)
    return F.pad(rows, (0, -rows.shape[1] % _BLOCK)).unflatten(1, (-1, _BLOCK))
