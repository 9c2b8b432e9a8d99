"""One file a method; `aggregate` is the one verb."""

from gcbench.compressors.base import Aggregated, Compressor, Grads, Properties, State, Step, flattened
from gcbench.compressors.build import analytic_ratio, build, parts_of
from gcbench.compressors.exchange import Codec

__all__ = [
    "Aggregated",
    "Codec",
    "Compressor",
    "Grads",
    "Properties",
    "State",
    "Step",
    "analytic_ratio",
    "build",
    "flattened",
    "parts_of",
]
