"""Gradients on which methods are timed: drawn, or recorded from a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.compressors import Grads
from gcbench.records.gradients import read_gradients

Shapes = Mapping[str, tuple[int, ...]]
InputOf = Callable[[torch.device, int], "Input"]  # arguments: a device and a worker


class Input(NamedTuple):
    """One worker's gradients, `[1, ...]` each, and the name of their distribution or file."""

    name: str
    grads: Grads

    @property
    def values(self) -> int:
        return sum(g.numel() for g in self.grads.values())

    @property
    def shapes(self) -> Shapes:
        return {k: tuple(g.shape[1:]) for k, g in self.grads.items()}


def _normal(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, generator=generator)


def _laplace(n: int, generator: torch.Generator) -> Tensor:
    return torch.empty(n).exponential_(generator=generator) * (
        torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    )


def _student(n: int, generator: torch.Generator) -> Tensor:
    """Return draws of Student's t with 3 degrees of freedom: heavier tails than gradients have."""
    squares = torch.zeros(n)
    for _ in range(3):
        squares += torch.randn(n, generator=generator).square_()
    return torch.randn(n, generator=generator) / torch.sqrt(squares / 3)


DRAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "normal": _normal,
    "laplace": _laplace,
    "student": _student,
}


def draw_input(name: str, shapes: Shapes, device: torch.device, worker: int = 0) -> Input:
    """Return a worker's gradients drawn from a distribution of DRAWS, with a scale of 0.01."""
    generator = torch.Generator().manual_seed(worker)
    grads = {
        k: DRAWS[name](torch.Size(s).numel(), generator).view(1, *s).to(device) * 1e-2
        for k, s in shapes.items()
    }
    return Input(name, grads)


def read_input(path: Path, device: torch.device, worker: int = 0) -> Input:
    """Return a worker's gradients from a file that trainer.record_gradients wrote.

    If the file has fewer workers, several workers get the same gradients.
    """
    recorded = read_gradients(path)
    row = worker % len(recorded.gradients)
    tensors = recorded.tensors()
    return Input(path.stem, {k: g[row : row + 1].to(device) for k, g in tensors.items()})


def one_matrix(values: int) -> Shapes:
    """Return the shape of a tensor of about `values` values, as square as powers of two allow.

    Low-rank methods need a matrix.
    """
    columns = 1 << (values.bit_length() // 2)
    return {"gradient": (max(1, values // columns), columns)}
