"""Files with the gradients of chosen steps, to measure codecs on those of real training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from gcbench.runner.records.files import replacing


@dataclass(frozen=True)
class Recorded:
    """The gradients of one step, as in `gradients/step-000100.pt` in a run's directory.

    The file holds these fields as a dictionary, written by `torch.save`.
    """

    names: list[str]  # names of the parameters, in the model's canonical order
    shapes: list[list[int]]  # shapes of the parameters, without the worker axis
    # [W, n] float32 on the CPU: each worker's gradient as it was compressed, tensors end to end.
    gradients: Tensor
    step: int  # counted from 0
    config: dict[str, Any]  # the run in short: model, dataset, compressor, seed, workers, ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of values of each parameter."""
        return tuple(map(math.prod, self.shapes))

    def tensors(self) -> dict[str, Tensor]:
        """Return each parameter's gradients `[W, *shape]` as views, as a compressor takes them."""
        parts = self.gradients.split(self.sizes, dim=1)
        return {
            k: part.view(-1, *shape)
            for k, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }


def read_gradients(path: Path) -> Recorded:
    """Return the gradients that `GradientFiles` wrote; no pickled code is executed."""
    return Recorded(**torch.load(path, map_location="cpu", weights_only=True))


def recording_path(folder: Path, step: int) -> Path:
    """Return the file of the gradients of one step, in the folder of a run's recordings."""
    return folder / f"step-{step:06d}.pt"


@dataclass(frozen=True)
class GradientFiles:
    """The recorded gradients of one run directory."""

    directory: Path
    config: dict[str, Any]

    def write(self, step: int, shapes: dict[str, Sequence[int]], gradients: Tensor) -> None:
        """Write the gradients `[W, n]` of the parameters that `shapes` names."""
        lists = [list(shape) for shape in shapes.values()]
        recorded = Recorded(list(shapes), lists, gradients, step, self.config)
        self.directory.mkdir(exist_ok=True)
        with replacing(recording_path(self.directory, step)) as file:
            write_tensors(vars(recorded), file)


class _Watched:
    """A file that keeps the error of a write that failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def write_tensors(content: dict[str, Any], file: BinaryIO) -> None:
    """Write a dictionary of tensors and plain values; raise the OSError of a write that failed.

    In its place `torch.save` raises an error about positions in its own format.
    """
    watched = _Watched(file)
    try:
        torch.save(content, cast(BinaryIO, watched))  # it needs no more of a file
    except (OSError, RuntimeError):
        if watched.error is None:
            raise
        raise watched.error from None
