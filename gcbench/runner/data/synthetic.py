"""Data labeled by a random linear teacher, of any number of samples, width and noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gcbench.core.codecs.noise import mix
from gcbench.core.fields import Count, NonNegative
from gcbench.runner.data.arrays import ArrayData, Pair, epoch_order, part_of
from gcbench.runner.data.protocol import Kind, Task, hold_out
from gcbench.runner.settings.groups import Split

Samples = Annotated[int, Field(ge=2)]


def synthetic(
    task: Literal["classification", "regression"] = "classification",
    samples: Samples = 10_000,
    features: Count = 64,
    outputs: Count = 10,
    noise: NonNegative = 0.1,
    seed: int = 0,
    split: Split = "test",
) -> ArrayData:
    """Return normally distributed inputs with targets of a random linear teacher.

    Targets are its noisy outputs (regression) or the index of the largest (classification).

    The test split has a fifth as many samples as the training split and comes from the same
    teacher.
    """
    generator = torch.Generator().manual_seed(seed)
    teacher = _normal(generator, features, outputs) / features**0.5

    def part(rows: int) -> Pair:
        inputs = _normal(generator, rows, features)
        scores = inputs @ teacher + noise * _normal(generator, rows, outputs)
        return inputs.float(), scores.argmax(1) if task == "classification" else scores.float()

    train, test = part(samples), part(max(1, samples // 5))
    optimum = teacher.T.float() if task == "regression" else None
    return ArrayData("synthetic", task, outputs, train, test, optimum=optimum).score_on(split)


def _normal(generator: torch.Generator, *size: int) -> Tensor:
    """Return normal draws in double precision.

    With it the labels do not depend on how many threads share a product.
    """
    return torch.randn(size, generator=generator, dtype=torch.float64)


def synthetic_rows(
    samples: Samples = 50_000,
    features: Count = 20_000,
    noise: NonNegative = 0.1,
    seed: int = 0,
    split: Split = "test",
) -> SyntheticRows:
    """Return the regression task of `synthetic`, for data too large for memory.

    The test split has a fifth as many samples.
    """
    train, test = torch.arange(samples), torch.arange(samples, samples + max(1, samples // 5))
    if split == "valid":
        train, test = hold_out(samples)
    teacher = _normal(torch.Generator().manual_seed(mix(seed)), features) / features**0.5
    return SyntheticRows(train, test, teacher, noise, seed)


@dataclass(frozen=True, eq=False)
class SyntheticRows:
    """Rows made on demand from (seed, row number), divided among workers as in ArrayData."""

    train: Tensor  # row numbers
    test: Tensor
    teacher: Tensor  # [features], float64
    noise: float
    seed: int
    device: torch.device = torch.device("cpu")
    name: ClassVar[str] = "synthetic"
    task: ClassVar[Task] = "regression"
    kind: ClassVar[Kind] = "vector"
    outputs: ClassVar[int] = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.teacher.shape)

    @property
    def train_samples(self) -> int:
        return len(self.train)

    @property
    def optimum(self) -> Tensor:
        return self.teacher[None].to(self.device, torch.float32)

    def to(self, device: torch.device) -> SyntheticRows:
        return replace(self, device=device)

    def steps_per_epoch(self, workers: int, batch_size: int) -> int:
        return self.train_samples // (workers * batch_size)

    def batch(
        self, *, epoch: int, step: int, worker: int, workers: int, batch_size: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        order = epoch_order(self.train_samples, seed, epoch, self.train.device)
        return self._make(self.train[part_of(order, step, worker, workers, batch_size)])

    def test_batches(self, batch_size: int) -> int:
        return -(-len(self.test) // batch_size)

    def test_batch(self, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
        return self._make(self.test[index * batch_size : (index + 1) * batch_size])

    def _make(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = zip(*map(self._row, rows.tolist()), strict=True)
        return torch.stack(inputs).to(self.device), torch.stack(targets).to(self.device)

    def _row(self, number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(mix(self.seed, number))
        inputs = torch.randn(len(self.teacher), generator=generator)
        target = inputs.double() @ self.teacher + self.noise * _normal(generator, 1)
        return inputs, target.float()
