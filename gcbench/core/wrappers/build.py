"""Build a compressor from a method and its wrappers, which have a fixed order."""

from __future__ import annotations

import warnings
from dataclasses import replace

from gcbench.core.codec import Codec, GridCodec, TableCodec
from gcbench.core.compressor import Compressor
from gcbench.core.exchange.aligned import Aligned
from gcbench.core.exchange.counts import CountExchange
from gcbench.core.exchange.gather import GatherExchange, ScatterExchange, SumExchange
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.exchange.ring import RingExchange
from gcbench.core.fields import Count, Natural, NonNegative, Positive, Share, checked
from gcbench.core.keys import (
    AdaptEvery,
    Beta,
    BucketScope,
    Code,
    CodedStart,
    Exchange,
    Rotation,
    WithErrorFeedback,
)
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.by_kind import ByKind
from gcbench.core.methods.ef21 import EF21, WorkerMomentum
from gcbench.core.methods.entropy_coded import apply_code
from gcbench.core.methods.loco import LoCo
from gcbench.core.methods.matrices import (
    OfMatrices,
    SmallTensorsWhole,
    StacksOfMatrices,
)
from gcbench.core.methods.onebit_adam import MomentumCoding
from gcbench.core.wrappers.adaptive import adapt
from gcbench.core.wrappers.conflicts import refuse_conflicts
from gcbench.core.wrappers.rotated import Rotated
from gcbench.core.wrappers.virtual import parts_of
from gcbench.core.wrappers.wrappers import (
    BucketsThroughGradient,
    CheckedGradients,
    DenseWarmup,
    ErrorFeedback,
    NormClipping,
    SigmaClipping,
)

Feedback = ErrorFeedback | EF21 | LoCo
"""What `error_feedback` puts around a method."""


@checked
def build(
    method: Compressor | Codec,
    *,
    adapt_every: AdaptEvery | None = None,
    align: bool = False,
    bucket_scope: BucketScope = "tensor",
    code: Code = "fixed",
    exchange: Exchange = "gather",
    rotate: Rotation = "none",
    workers_per_node: Count | None = None,
    clip_norm: Positive | None = None,
    dense_steps: Natural = 0,
    min_size: Natural = 0,
    min_dims: Natural = 0,
    min_ratio: NonNegative = 0.0,
    error_feedback: WithErrorFeedback = False,
    alpha: NonNegative = 1.0,
    beta: Beta = 1.0,
    reset_steps: Count | None = None,
    momentum: Share | None = None,
    momentum_start: CodedStart = "warmup",
    clip_sigma: Positive | None = None,
) -> Compressor:
    """Return `method` as a compressor, inside the wrappers that the settings ask for.

    The codes of a codec are written in `code` and sent by `exchange`. Raises ValueError for
    settings that contradict one another or the method.
    """
    refuse_conflicts(
        {
            "adapt_every": adapt_every,
            "align": align,
            "bucket_scope": bucket_scope,
            "code": code,
            "exchange": exchange,
            "rotate": rotate,
            "workers_per_node": workers_per_node,
            "error_feedback": error_feedback,
            "alpha": alpha,
            "beta": beta,
            "per_layer": getattr(method, "per_layer", False),
            "combine": getattr(method, "combine", None),
        }
    )
    if isinstance(method, ByKind):
        _refuse_residuals_of_shards(method)
    sent_as = (align, code, exchange, workers_per_node, rotate)
    compressor = _send_codes(method, *sent_as)
    if adapt_every is not None:
        compressor = adapt(method, adapt_every, lambda codec: _send_codes(codec, *sent_as))
    elif error_feedback == "ef21" and isinstance(compressor, ScatterExchange):
        compressor = replace(compressor, residual="all")
    if rotate == "hadamard":
        if getattr(method, "norm", None) == "l2":
            warnings.warn(
                "rotate=hadamard norm=l2: a step of a 2-norm's grid is small only for buckets of "
                "few large values, which a rotation leaves none of. Type norm=linf",
                stacklevel=2,
            )
        # Rotated values are nearly normal, so that few are cut.
        clipped = compressor if clip_sigma is None else SigmaClipping(compressor, clip_sigma)
        compressor, clip_sigma = Rotated(clipped), None
    if bucket_scope == "gradient":
        compressor = BucketsThroughGradient(compressor)
    if clip_sigma is not None:
        compressor = SigmaClipping(compressor, clip_sigma)
    compressor = _add_feedback(compressor, error_feedback, alpha, beta, reset_steps)
    if momentum is not None and error_feedback == "ef21":
        compressor = WorkerMomentum(compressor, momentum)
    elif momentum is not None:
        if dense_steps > 0:
            compressor, dense_steps = DenseWarmup(compressor, dense_steps), 0
        compressor = MomentumCoding(compressor, momentum, momentum_start)
    matrices = method if isinstance(method, OfMatrices) and bucket_scope == "tensor" else None
    if matrices:
        compressor = StacksOfMatrices(compressor)
    elif min_ratio:
        raise ValueError(
            f"min_ratio={min_ratio:g}: {type(method).__name__} sends no factors of matrices; leave "
            "it out"
        )
    if min_size > 0 or min_dims > 0 or min_ratio > 0:
        compressor = SmallTensorsWhole(compressor, min_size, min_dims, min_ratio, matrices)
    if dense_steps > 0:
        compressor = DenseWarmup(compressor, dense_steps)
    if clip_norm is not None:
        compressor = NormClipping(compressor, clip_norm)
    return CheckedGradients(compressor)


def _send_codes(
    method: Compressor | Codec,
    align: bool,
    code: Code,
    exchange: Exchange,
    workers_per_node: Count | None,
    rotate: Rotation,
) -> Compressor:
    """Return a compressor that sends a codec's codes; a compressor is returned unchanged."""
    if isinstance(method, Compressor):
        for key, value, default in (
            ("align", align, False),
            ("code", code, "fixed"),
            ("exchange", exchange, "gather"),
            ("rotate", rotate, "none"),
        ):
            if value != default:
                raise ValueError(
                    f"{key}={str(value).lower()}: {type(method).__name__} has no codes, and "
                    "decides itself how it sends; leave it out"
                )
        return method
    if align:
        if not isinstance(method, Bucketed):
            raise ValueError(f"align=true: {type(method).__name__} has no buckets; leave it out")
        return Aligned(method, code)
    if exchange == "hierarchical":
        return Hierarchical(method, workers_per_node)
    return build_exchange(apply_code(method, code), exchange)


def _add_feedback(
    compressor: Compressor,
    kind: WithErrorFeedback,
    alpha: NonNegative,
    beta: Beta,
    reset_steps: Count | None,
) -> Compressor:
    """Return the compressor inside error feedback of this kind; False adds none."""
    if kind == "ef21":
        _warn_if_expanding(compressor, "error_feedback=ef21")
        return EF21(compressor)
    if kind == "loco":
        return LoCo(compressor, alpha, reset_steps)
    if not kind:
        return compressor
    if alpha == beta == 1:
        _warn_if_expanding(compressor, "error_feedback=true with alpha=1 beta=1")
    return ErrorFeedback(compressor, alpha, beta)


def _refuse_residuals_of_shards(method: ByKind) -> None:
    """Raise ValueError if a kind has a residual per shard: state belongs to tensors there."""
    for part in (*parts_of(method.convolutions), *parts_of(method.others)):
        if isinstance(part, ScatterExchange) and part.code_means:
            raise ValueError(
                "exchange=scatter_coded inside a method for convolutions and one for other "
                "tensors: a shard belongs to neither; type exchange=scatter"
            )


def _warn_if_expanding(compressor: Compressor, typed: str) -> None:
    if not compressor.properties.contractive:
        warnings.warn(
            f"{typed} around a quantizer whose error can exceed its input: the residual may grow "
            "without bound. Type error_feedback=true alpha=0.2 beta=0.9 (ECQ-SGD), more "
            "levels, or a smaller bucket_size",
            stacklevel=2,
        )


def build_exchange(codec: Codec, exchange: Exchange) -> Compressor:
    """Return a compressor that sends the codes of `codec` by `exchange`.

    Raises ValueError for exchange=sum with a codec that cannot share a grid or tables.
    """
    if exchange == "gather":
        return GatherExchange(codec)
    if exchange == "sum":
        if isinstance(codec, GridCodec):
            return SumExchange(codec)
        if isinstance(codec, TableCodec):
            return CountExchange(codec)
        raise ValueError(
            "exchange=sum needs codes on a shared grid, such as those of qsgd; "
            "type exchange=gather or scatter"
        )
    if exchange == "ring":
        return RingExchange(codec)
    return ScatterExchange(codec, code_means=exchange == "scatter_coded")
