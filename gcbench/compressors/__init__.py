"""One file a method; `aggregate` is the one verb."""

from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Grads,
    MethodError,
    Properties,
    State,
    Step,
    flattened,
    merge,
    refuse_other_tensors,
)
from gcbench.compressors.build import analytic_ratio, build, compressed_share, parts_of
from gcbench.compressors.exchange import Codec

__all__ = [
    "Aggregated",
    "Codec",
    "Compressor",
    "Grads",
    "MethodError",
    "Properties",
    "State",
    "Step",
    "analytic_ratio",
    "build",
    "compressed_share",
    "flattened",
    "merge",
    "parts_of",
    "refuse_other_tensors",
]
