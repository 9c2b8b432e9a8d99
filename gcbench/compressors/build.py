"""Build a compressor from a method and its wrappers, which have a fixed order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from gcbench.compressors.aligned import Aligned
from gcbench.compressors.base import Compressor
from gcbench.compressors.bucketed import Bucketed
from gcbench.compressors.by_kind import ByKind
from gcbench.compressors.codec import Codec
from gcbench.compressors.conflicts import refuse_conflicts
from gcbench.compressors.dense import Dense
from gcbench.compressors.ef21 import EF21
from gcbench.compressors.entropy_coded import apply_code
from gcbench.compressors.exchange import ScatterExchange, build_exchange
from gcbench.compressors.hierarchical import Hierarchical
from gcbench.compressors.loco import LoCo
from gcbench.compressors.matrices import OfMatrices, StacksOfMatrices, is_convolution
from gcbench.compressors.onebit_adam import MomentumCoding
from gcbench.compressors.small import SmallTensorsWhole
from gcbench.compressors.wrappers import (
    BucketsThroughGradient,
    CheckedGradients,
    DenseWarmup,
    ErrorFeedback,
    NormClipping,
    SigmaClipping,
)
from gcbench.knobs import checked
from gcbench.settings.wrappers import (
    Align,
    Alpha,
    Beta,
    BucketScope,
    ClipNorm,
    ClipSigma,
    Code,
    CodedMomentum,
    CodedStart,
    DenseSteps,
    Exchange,
    MinDims,
    MinRatio,
    MinSize,
    ResetSteps,
    WithErrorFeedback,
    WorkersPerNode,
)

Feedback = ErrorFeedback | EF21 | LoCo
"""What `error_feedback` puts around a method."""


@checked
def build(
    method: Compressor | Codec,
    *,
    align: Align = False,
    bucket_scope: BucketScope = "tensor",
    code: Code = "fixed",
    exchange: Exchange = "gather",
    workers_per_node: WorkersPerNode | None = None,
    clip_norm: ClipNorm | None = None,
    dense_steps: DenseSteps = 0,
    min_size: MinSize = 0,
    min_dims: MinDims = 0,
    min_ratio: MinRatio = 0.0,
    error_feedback: WithErrorFeedback = False,
    alpha: Alpha = 1.0,
    beta: Beta = 1.0,
    reset_steps: ResetSteps | None = None,
    momentum: CodedMomentum | None = None,
    momentum_start: CodedStart = "warmup",
    clip_sigma: ClipSigma | None = None,
) -> Compressor:
    """Return `method` as a compressor, inside the wrappers that the settings ask for.

    The codes of a codec are written in `code` and sent by `exchange`. Raises ValueError for
    settings that contradict one another or the method.
    """
    refuse_conflicts(
        {
            "align": align,
            "bucket_scope": bucket_scope,
            "code": code,
            "exchange": exchange,
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
    compressor = _send_codes(method, align, code, exchange, workers_per_node)
    if bucket_scope == "gradient":
        compressor = BucketsThroughGradient(compressor)
    if clip_sigma is not None:
        compressor = SigmaClipping(compressor, clip_sigma)
    compressor = _add_feedback(compressor, error_feedback, alpha, beta, reset_steps)
    if momentum is not None:
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
    align: Align,
    code: Code,
    exchange: Exchange,
    workers_per_node: WorkersPerNode | None,
) -> Compressor:
    """Return a compressor that sends a codec's codes; a compressor is returned unchanged."""
    if isinstance(method, Compressor):
        for key, value, default in (
            ("align", align, False),
            ("code", code, "fixed"),
            ("exchange", exchange, "gather"),
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
    alpha: Alpha,
    beta: Beta,
    reset_steps: ResetSteps | None,
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


def parts_of(compressor: Compressor) -> Iterator[object]:
    """Yield the compressor and what it wraps, outermost first."""
    part: object | None = compressor
    while part is not None:
        yield part
        part = getattr(part, "inner", None) or getattr(part, "codec", None)


def analytic_ratio(compressor: Compressor) -> float | None:
    """Return 32 divided by the bits per value that the method's paper counts.

    Scales and tables are left out. None if the bits depend on the codes, or if the paper counts
    them in another way.
    """
    name = "analytic_bits_per_value"
    bits = next((getattr(part, name) for part in parts_of(compressor) if hasattr(part, name)), None)
    return 32 / bits if bits else None


def is_direction(compressor: Compressor) -> bool:
    """Return whether a part of the update has no scale, so that its length says nothing."""
    parts = (getattr(part, "properties", None) for part in parts_of(compressor))
    return any(properties.direction for properties in parts if properties)


def compressed_share(
    compressor: Compressor, shapes: Collection[Sequence[int]], exchanges: int, whole: int = 0
) -> float:
    """Return the share of gradient values that are compressed, averaged over `exchanges`.

    The other values are sent in fp32, as are `whole` gradients in addition to these exchanges,
    which count in the average.
    """
    share = _count_compressed(compressor, shapes) / max(1, sum(map(math.prod, shapes)))
    if not exchanges + whole:
        return share
    coded = max(0, exchanges - dense_steps_of(compressor))
    return share * coded / (exchanges + whole)


def dense_steps_of(compressor: Compressor) -> int:
    """Return how many exchanges of a warm-up send uncompressed gradients."""
    return sum(part.dense_steps for part in parts_of(compressor) if isinstance(part, DenseWarmup))


def _count_compressed(part: Any, shapes: Collection[Sequence[int]]) -> int:
    """Return how many values of tensors of these shapes are compressed."""
    if isinstance(part, ByKind):
        convolutions = [shape for shape in shapes if is_convolution(shape)]
        others = [shape for shape in shapes if not is_convolution(shape)]
        return _count_compressed(part.convolutions, convolutions) + _count_compressed(
            part.others, others
        )
    if isinstance(part, Dense) and part.dtype == "float32":
        return 0
    if isinstance(part, SmallTensorsWhole):
        shapes = [shape for shape in shapes if not part.sets_aside(shape)]
    inner = getattr(part, "inner", None)
    return _count_compressed(inner, shapes) if inner is not None else sum(map(math.prod, shapes))


def _warn_if_expanding(compressor: Compressor, typed: str) -> None:
    if not compressor.properties.contractive:
        warnings.warn(
            f"{typed} around a quantizer whose error can exceed its input: the residual may grow "
            "without bound. Type error_feedback=true alpha=0.2 beta=0.9 (ECQ-SGD), more "
            "levels, or a smaller bucket_size",
            stacklevel=2,
        )
