"""A text as one long row of tokens, read in windows for truncated back-propagation through time.

Nothing is shuffled: window t + 1 of a worker continues its window t, so that hidden state can be
carried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.data.protocol import Kind, Task


@dataclass(frozen=True, eq=False)
class TokenData:
    """A text of which worker k owns the k-th contiguous part, cut into batch_size columns."""

    name: str
    outputs: int
    train: Tensor
    test: Tensor
    bptt: int
    task: ClassVar[Task] = "language"
    kind: ClassVar[Kind] = "tokens"
    shape: ClassVar[tuple[int, ...]] = ()

    @property
    def train_samples(self) -> int:
        return len(self.train)

    def to(self, device: torch.device) -> TokenData:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def steps_per_epoch(self, workers: int, batch_size: int) -> int:
        return max(0, self.train_samples // workers // batch_size - 1) // self.bptt

    def batch(
        self, *, epoch: int, step: int, worker: int, workers: int, batch_size: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        assert 0 <= worker < workers and 0 <= step < self.steps_per_epoch(workers, batch_size)
        share = self.train_samples // workers
        return _window(self.train.narrow(0, worker * share, share), step, batch_size, self.bptt)

    def test_batches(self, batch_size: int) -> int:
        return -(-max(0, len(self.test) // batch_size - 1) // self.bptt)

    def test_batch(self, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
        return _window(self.test, index, batch_size, self.bptt)


def _window(tokens: Tensor, index: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the index-th window of each column, [columns, length], and its targets.

    The targets are the same window one word later. The last window may be shorter.
    """
    rows = len(tokens) // columns
    table = tokens[: columns * rows].view(columns, rows)
    start, stop = index * length, min((index + 1) * length, rows - 1)
    return table[:, start:stop], table[:, start + 1 : stop + 1]
