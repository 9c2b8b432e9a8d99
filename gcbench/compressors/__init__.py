"""One file a method; `aggregate` is the one verb."""

from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Grads,
    MethodError,
    Properties,
    State,
    Step,
    flatten,
    flattened,
    merge,
    offsets_of,
    refuse_other_tensors,
    sizes_of,
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
    "flatten",
    "flattened",
    "merge",
    "offsets_of",
    "parts_of",
    "refuse_other_tensors",
    "sizes_of",
]
