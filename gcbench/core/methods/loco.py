"""LoCo: rounding to the nearest level, and a residual in 8 bits that is reset periodically."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.core.codecs.blocks import count_blocks, in_blocks, of_blocks
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.one_pass import RESIDUAL_BLOCK, Kinds, Parameters, Residual
from gcbench.core.codecs.scales import max_norm
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    flatten_each,
    sizes_of,
)
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.fields import Checked, Count, NonNegative
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.quantizers import SignedGridQuantizer
from gcbench.core.wrappers.wrappers import ErrorFeedback

_LARGEST = 127  # the largest code of a residual, in a signed byte


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

    def scale(self, v: Tensor) -> Tensor:
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
    alpha: NonNegative = 1.0  # the paper's beta
    reset_steps: Count | None = None  # T; None: never

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return Properties(scope=inner.scope, divisible=inner.divisible)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        scales = state.inner or State()
        if native := self._in_bytes(grads):
            return self._aggregate_native(native, grads, state, comm, step)
        codes = {k: state.per_worker[k] for k in grads} if state.per_worker else {}
        residual = _from_bytes(codes, scales.per_worker) if codes else {}
        feedback = ErrorFeedback(self.inner, self.alpha)
        mine = replace(step, in_place=True)  # these floats are kept no longer
        out = feedback.aggregate(grads, State({}, residual, scales.inner), comm, mine)
        left = out.state.per_worker
        if self._resets(step):
            left = {k: torch.zeros_like(x) for k, x in left.items()}
        codes, new_scales = _to_bytes(left)
        memory = State(per_worker=new_scales, inner=out.state.inner)
        return out._replace(state=State(per_worker=codes, inner=memory))

    def _resets(self, step: Step) -> bool:
        return bool(self.reset_steps) and (step.number + 1) % (self.reset_steps or 1) == 0

    def _in_bytes(self, grads: Grads) -> Bucketed | None:
        """Return the codec whose native code takes a residual in bytes; None: there is none.

        It needs rows of as many values as share a scale of the residual.
        """
        inner = self.inner
        codec = inner.codec_in_native_code(grads) if isinstance(inner, GatherExchange) else None
        fits = codec and (codec.per_layer or codec.bucket_size % RESIDUAL_BLOCK == 0)
        return codec if fits else None

    def _aggregate_native(
        self, codec: Bucketed, grads: Grads, state: State, comm: Comm, step: Step
    ) -> Aggregated:
        assert isinstance(self.inner, GatherExchange)
        scales = state.inner or State()
        old = state.per_worker or {
            k: torch.zeros_like(g, dtype=torch.int8) for k, g in grads.items()
        }
        old_scales = scales.per_worker or {
            k: g.new_zeros(len(g), -(-g[0].numel() // RESIDUAL_BLOCK)) for k, g in grads.items()
        }
        new, new_scales = (
            {k: part[k] if step.in_place else torch.empty_like(part[k]) for k in grads}
            for part in (old, old_scales)
        )
        before, left = (flatten_each({k: part[k] for k in grads}) for part in (old, new))
        residual = Residual(
            *(before, left, self.alpha, 1 - self.alpha),
            *([old_scales[k] for k in grads], [*new_scales.values()]),
        )
        message = codec.encode_in_bytes(grads, residual, step)
        if self._resets(step):
            torch._foreach_zero_([*new.values(), *new_scales.values()])
        out = self.inner.gather(message, grads, scales.inner or State(), comm, step)
        memory = State(per_worker=new_scales, inner=out.state)
        return out._replace(state=State(per_worker=new, inner=memory))


def _to_bytes(values: Grads) -> tuple[Grads, Grads]:
    """Return values rounded to int8, and one scale per 512 of each tensor, `[w, blocks]`."""
    codes, scales = _round_blocks(in_blocks(flatten_each(values), RESIDUAL_BLOCK))
    counts = count_blocks([*sizes_of(values).values()], RESIDUAL_BLOCK)
    return _of_blocks(codes, values), dict(zip(values, scales.split(counts, 1), strict=True))


def _from_bytes(codes: Grads, scales: Grads) -> Grads:
    """Return the values that `_to_bytes` rounded."""
    of_all = torch.cat([scales[k] for k in codes], dim=1).unsqueeze(-1)
    return _of_blocks(in_blocks(flatten_each(codes), RESIDUAL_BLOCK) * of_all, codes)


@kernel
def _round_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scales = blocks.abs().amax(-1) / _LARGEST
    codes = (blocks / torch.where(scales > 0, scales, 1).unsqueeze(-1)).round()
    return codes.clamp(-_LARGEST, _LARGEST).to(torch.int8), scales


def _of_blocks(blocks: Tensor, like: Grads) -> Grads:
    """Return the tensors in blocks, as views in the shapes of `like`."""
    parts = of_blocks(blocks, [*sizes_of(like).values()])
    return {k: part.view(g.shape) for (k, g), part in zip(like.items(), parts, strict=True)}
