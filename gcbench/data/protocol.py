"""What the trainer asks of a data set: any batch at any time, with nothing to remember between."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Task = Literal["classification", "regression", "language"]
Kind = Literal["image", "vector", "tokens", "speech"]


@runtime_checkable
class Data(Protocol):
    """A data set with random access: a batch depends on the arguments of `batch` and on nothing
    else.
    """

    @property
    def name(self) -> str: ...

    @property
    def task(self) -> Task: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample as the model sees it: (3, 32, 32), (64,), (frames, features), or ()
        for tokens.
        """

    @property
    def outputs(self) -> int:
        """Classes (of a sample, or of each frame), words of the vocabulary or, for
        regression, columns of the targets.
        """

    @property
    def train_samples(self) -> int:
        """Images, rows or, for language, tokens to train on."""

    def to(self, device: torch.device) -> Data: ...

    def steps_per_epoch(self, workers: int, batch_size: int) -> int:
        """Full steps in an epoch (a last, smaller one is dropped); 0 when the data is too
        small for one.
        """

    def batch(
        self, *, epoch: int, step: int, worker: int, workers: int, batch_size: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets that `worker` trains on at this step, on the device, ready for
        the model.
        """

    def test_batches(self, batch_size: int) -> int:
        """Batches of the test split; the last may be short."""

    def test_batch(self, index: int, batch_size: int) -> tuple[Tensor, Tensor]: ...
