"""Images, vectors or speech held as tensors on the device, reshuffled every epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from gcbench.core.codecs.noise import mix
from gcbench.runner.data.augment import Augmentation
from gcbench.runner.data.protocol import Kind, hold_out
from gcbench.runner.settings.groups import Split

Pair = tuple[Tensor, Tensor]
FLIPS = -1  # replaces the epoch in the seed of draws that hold for all epochs


@lru_cache(maxsize=1)
def epoch_order(samples: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """Return the epoch's order of samples, drawn on the CPU to be the same on every device."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(samples, generator=generator).to(device)


@lru_cache(maxsize=1)
def first_sides(samples: int, seed: int, device: torch.device) -> Tensor:
    """Return which samples are mirrored in the first epoch, also drawn on the CPU."""
    generator = torch.Generator().manual_seed(mix(seed, FLIPS))
    return torch.randint(2, (samples,), generator=generator).bool().to(device)


def part_of(order: Tensor, step: int, worker: int, workers: int, batch_size: int) -> Tensor:
    """Return the indices of the samples in one worker's batch, `[batch_size]`.

    Step t takes the t-th workers x batch_size samples in `order`; worker k the k-th part of these.
    """
    assert 0 <= worker < workers and 0 <= step < len(order) // (workers * batch_size)
    return order.narrow(0, (step * workers + worker) * batch_size, batch_size)


@dataclass(frozen=True, eq=False)
class ArrayData:
    """Samples in memory, divided among the workers in the epoch's order, as in `part_of`.

    `pixels` holds the mean and the standard deviation of the raw inputs, by which these are
    standardized batch by batch, so that images stay uint8 in memory; without it the model gets the
    inputs unchanged.
    """

    name: str
    task: Literal["classification", "regression"]
    outputs: int
    train: Pair
    test: Pair
    pixels: Pair | None = None
    augment: Augmentation | None = None
    optimum: Tensor | None = None
    """`[outputs, features]`, the weights that made the targets, where they are known."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train[0].shape[1:])

    @property
    def kind(self) -> Kind:
        kinds: tuple[Kind, ...] = ("vector", "speech", "image")
        return kinds[len(self.shape) - 1]

    @property
    def train_samples(self) -> int:
        return len(self.train[0])

    def to(self, device: torch.device) -> ArrayData:
        pixels = _move(self.pixels, device) if self.pixels else None
        optimum = None if self.optimum is None else self.optimum.to(device)
        return replace(
            self,
            train=_move(self.train, device),
            test=_move(self.test, device),
            pixels=pixels,
            optimum=optimum,
        )

    def score_on(self, split: Split) -> ArrayData:
        """Return the data with the test part that `split` names.

        For `test` that is the test part itself; for `valid` it is a part of the training samples,
        which is held out from training.
        """
        if split == "test":
            return self
        kept, held = hold_out(self.train_samples)
        inputs, targets = self.train
        return replace(
            self, train=(inputs[kept], targets[kept]), test=(inputs[held], targets[held])
        )

    def steps_per_epoch(self, workers: int, batch_size: int) -> int:
        return self.train_samples // (workers * batch_size)

    def batch(
        self, *, epoch: int, step: int, worker: int, workers: int, batch_size: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        inputs, targets = self.train
        order = epoch_order(self.train_samples, seed, epoch, inputs.device)
        chosen = part_of(order, step, worker, workers, batch_size)
        raw = inputs[chosen]
        if self.augment:
            generator = torch.Generator(inputs.device).manual_seed(mix(seed, epoch, step, worker))
            mirrored = None
            if self.augment.flip == "alternating":
                sides = first_sides(self.train_samples, seed, inputs.device)[chosen]
                mirrored = sides if epoch % 2 == 0 else ~sides
            raw = self.augment.apply(raw, generator, mirrored)
        return self._standardize(raw), targets[chosen]

    def test_batches(self, batch_size: int) -> int:
        return -(-len(self.test[0]) // batch_size)

    def test_batch(self, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
        part = slice(index * batch_size, (index + 1) * batch_size)
        return self._standardize(self.test[0][part]), self.test[1][part]

    def _standardize(self, raw: Tensor) -> Tensor:
        if self.pixels is None:
            return raw
        mean, deviation = self.pixels
        return (raw.float() - mean) / deviation


def _move(pair: Pair, device: torch.device) -> Pair:
    return pair[0].to(device), pair[1].to(device)
