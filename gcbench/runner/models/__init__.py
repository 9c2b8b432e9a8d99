"""The benchmark's models: plain modules, one family per file.

A factory takes `shape` (of one sample) and `outputs`, or `vocabulary`; each YAML file in conf/model
names one.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class InitializedFromData(Protocol):
    """A model whose initial weights depend on the data as well as on the seed."""

    def initialize_from(self, inputs: Tensor) -> None:
        """Set initial weights from training inputs, standardized and augmented as in training."""
