"""Gradient-compression methods, one per file, all called through `aggregate`."""

from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Goal,
    Grads,
    MethodError,
    Properties,
    State,
    Step,
    flatten,
    flatten_each,
    merge,
    offsets_of,
    refuse_other_update,
    sizes_of,
    split_rows,
    unflatten,
)
from gcbench.compressors.build import build
from gcbench.compressors.codec import Codec
from gcbench.compressors.virtual import analytic_ratio, compressed_share, is_direction, parts_of

__all__ = [
    "Aggregated",
    "Codec",
    "Compressor",
    "Goal",
    "Grads",
    "MethodError",
    "Properties",
    "State",
    "Step",
    "analytic_ratio",
    "build",
    "compressed_share",
    "flatten",
    "flatten_each",
    "is_direction",
    "merge",
    "offsets_of",
    "parts_of",
    "refuse_other_update",
    "sizes_of",
    "split_rows",
    "unflatten",
]
