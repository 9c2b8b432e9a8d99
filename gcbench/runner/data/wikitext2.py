"""WikiText-2, word by word (Merity et al., "Pointer sentinel mixture models", ICLR 2017).

Words are split at white space and every line ends in <eos>, as in PyTorch's word-language example.
By default models are tested on the validation file, as in PowerSGD's code (Vogels et al., NeurIPS
2019).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gcbench.core.fields import Count, example
from gcbench.runner.data.protocol import Kind, Task

_MARKERS = ("<unk>", "<eos>")


def wikitext2(
    root: str,
    bptt: Count = 30,
    vocabulary: Annotated[int, Field(ge=len(_MARKERS) + 1), example(2000)] | None = None,
    split: Literal["valid", "test"] = "valid",
) -> TokenData:
    """Return WikiText-2 with at most `vocabulary` different words.

    The model has that many outputs even if fewer words occur.
    """
    folder = Path(root).expanduser() / "wikitext-2"
    words = {part: _words(folder, part) for part in ("train", "valid", "test")}
    kept = chain(*words.values()) if vocabulary is None else _frequent(words["train"], vocabulary)
    numbers = {word: number for number, word in enumerate(dict.fromkeys(chain(_MARKERS, kept)))}
    train, test = _encode(words["train"], numbers), _encode(words[split], numbers)
    return TokenData("wikitext2", vocabulary or len(numbers), train, test, bptt)


def _words(folder: Path, part: str) -> list[str]:
    with find_text("wikitext2", folder, part).open(encoding="utf-8") as lines:
        return [word for line in lines for word in (*line.split(), "<eos>")]


def find_text(dataset: str, folder: Path, part: str) -> Path:
    """Return the file of a part; raise ValueError if there is none."""
    for file in (folder / f"{part}.txt", folder / f"wiki.{part}.tokens"):
        if file.is_file():
            return file
    raise ValueError(
        f"dataset={dataset}: neither {part}.txt nor wiki.{part}.tokens is in {folder}; put "
        "WikiText-2's train, valid and test files there or set data.root=... to the folder that "
        "holds wikitext-2/"
    )


def _frequent(words: list[str], vocabulary: int) -> list[str]:
    """Return the training split's most frequent words, leaving room for the markers."""
    ranked = [word for word, _ in Counter(words).most_common() if word not in _MARKERS]
    return ranked[: vocabulary - len(_MARKERS)]


def _encode(words: list[str], numbers: dict[str, int]) -> Tensor:
    unknown = numbers["<unk>"]
    return torch.tensor([numbers.get(word, unknown) for word in words])


@dataclass(frozen=True, eq=False)
class TokenData:
    """A text of which worker k owns the k-th contiguous part, cut into batch_size columns.

    So the same windows are trained on, whatever the number of workers that share a global batch.
    """

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

    The targets are the same window one word later. The last window may be shorter. Bytes become
    numbers, which models and losses take.
    """
    rows = len(tokens) // columns
    table = tokens[: columns * rows].view(columns, rows)
    start, stop = index * length, min((index + 1) * length, rows - 1)
    return table[:, start:stop].long(), table[:, start + 1 : stop + 1].long()
