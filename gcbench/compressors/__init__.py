"""One file a method; `aggregate` is the one verb."""

from gcbench.compressors.base import Aggregated, Compressor, Grads, Properties, State, Step
from gcbench.compressors.build import build

__all__ = ["Aggregated", "Compressor", "Grads", "Properties", "State", "Step", "build"]
