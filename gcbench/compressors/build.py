"""Puts a method and its wrappers together, in their one order."""

from __future__ import annotations

import warnings

from gcbench.compressors.base import Compressor
from gcbench.compressors.exchange import Codec, Exchange, sent_by
from gcbench.compressors.wrappers import (
    DenseWarmup,
    ErrorFeedback,
    NormClipping,
    SigmaClipping,
    SmallTensorsWhole,
)


def build(
    method: Compressor | Codec,
    *,
    exchange: Exchange = "gather",
    clip_norm: float | None = None,
    dense_steps: int = 0,
    min_size: int = 0,
    min_dims: int = 0,
    error_feedback: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    clip_sigma: float | None = None,
) -> Compressor:
    """`method` with every wrapper that was asked for; `exchange` is how a codec's codes travel."""
    compressor: Compressor = method if hasattr(method, "aggregate") else sent_by(method, exchange)  # type: ignore[assignment]
    if clip_sigma is not None:
        compressor = SigmaClipping(compressor, clip_sigma)
    if error_feedback:
        _warn_if_expanding(compressor, alpha, beta)
        compressor = ErrorFeedback(compressor, alpha, beta)
    if min_size > 0 or min_dims > 0:
        compressor = SmallTensorsWhole(compressor, min_size, min_dims)
    if dense_steps > 0:
        compressor = DenseWarmup(compressor, dense_steps)
    if clip_norm is not None:
        compressor = NormClipping(compressor, clip_norm)
    return compressor


def _warn_if_expanding(compressor: Compressor, alpha: float, beta: float) -> None:
    if alpha == beta == 1 and not compressor.properties.contractive:
        warnings.warn(
            "error_feedback=true with alpha=1 beta=1 around a quantiser whose error can exceed its input: the memory may "
            "grow without bound. Type alpha=0.2 beta=0.9 (ECQ-SGD), more levels, or a smaller bucket_size",
            stacklevel=2,
        )
