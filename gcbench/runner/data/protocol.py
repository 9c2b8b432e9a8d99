"""The protocol of data sets: any batch can be asked for at any time, as there is no state."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Task = Literal["classification", "regression", "language"]
Kind = Literal["image", "vector", "tokens", "speech"]


@runtime_checkable
class Data(Protocol):
    """A data set with random access, where a batch depends on the arguments of `batch` alone."""

    @property
    def name(self) -> str: ...

    @property
    def task(self) -> Task: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a sample as the model sees it.

        For example (3, 32, 32), (64,) or (frames, features); () for tokens.
        """

    @property
    def outputs(self) -> int:
        """Return how many outputs a model needs.

        They are classes (per sample or per frame), words of the vocabulary or, for regression,
        columns of the targets.
        """

    @property
    def train_samples(self) -> int:
        """Return how many images, rows or, for language, tokens there are to train on."""

    def to(self, device: torch.device) -> Data: ...

    def steps_per_epoch(self, workers: int, batch_size: int) -> int:
        """Return the number of full steps in an epoch; 0 if the data is too small for one.

        A last, smaller step is dropped.
        """

    def batch(
        self, *, epoch: int, step: int, worker: int, workers: int, batch_size: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets that `worker` trains on, on the device, ready for the model."""

    def test_batches(self, batch_size: int) -> int:
        """Return the number of batches of the test split; the last may be short."""

    def test_batch(self, index: int, batch_size: int) -> tuple[Tensor, Tensor]: ...


def hold_out(samples: int, share: int = 10) -> tuple[Tensor, Tensor]:
    """Return the indices of training rows and of held-out rows.

    The latter are the last `1 / share` of a permutation that does not depend on the run's seed.
    """
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    kept, held = order.split([samples - samples // share, samples // share])
    return kept, held
