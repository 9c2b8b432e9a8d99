"""gisette rebuilt from MNIST: fours against nines in 5,000 features, half of them uninformative.

Guyon, Gunn, Ben-Hur and Dror, "Result analysis of the NIPS 2003 feature selection challenge",
NeurIPS 2004, who describe how gisette was made, but not which pixels they drew.
"""

from __future__ import annotations

import numpy as np
import torch

from gcbench.runner.data.arrays import ArrayData, Pair
from gcbench.runner.data.vision import mnist
from gcbench.runner.settings.groups import Split

FOUR, NINE = 4, 9
REAL = 2500  # number of pixels and products of two pixels; as many probes follow
ROWS_PER_CLASS = {"train": 3000, "test": 500}


def gisette_from_mnist(root: str, download: bool = True, split: Split = "test") -> ArrayData:
    """Return 6,000 training and 1,000 test rows of 5,000 features in [-1, 1], and classes.

    Fours are class 0, nines class 1. Features are the pixels that vary, products of random pairs of
    them to make up 2,500, and 2,500 probes: the same columns, each with its rows in a different
    random order. None of this depends on the seed.
    """
    digits = mnist(root, download)
    train_rows, test_rows = _rows(digits.train, "train"), _rows(digits.test, "test")
    random = np.random.default_rng(0)
    varying = np.flatnonzero(train_rows[0].std(0))
    pairs = random.choice(varying, (REAL - len(varying), 2))
    train, test = (
        _pair(np.hstack([x[:, varying], x[:, pairs[:, 0]] * x[:, pairs[:, 1]]]), labels, random)
        for x, labels in (train_rows, test_rows)
    )
    return ArrayData("gisette_mnist", "classification", 2, train, test).score_on(split)


def _rows(part: Pair, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels in [0, 1], `[rows, 784]`, and classes of the first images of each digit."""
    images, digits = (tensor.numpy() for tensor in part)
    chosen = np.sort(
        np.concatenate(
            [np.flatnonzero(digits == digit)[: ROWS_PER_CLASS[name]] for digit in (FOUR, NINE)]
        )
    )
    pixels = images[chosen].reshape(len(chosen), -1).astype(np.float32) / 255
    return pixels, (digits[chosen] == NINE).astype(np.int64)


def _pair(real: np.ndarray, labels: np.ndarray, random: np.random.Generator) -> Pair:
    """Return features with their probes in [-1, 1], and labels."""
    probes = random.permuted(real, axis=0)
    # Rows are contiguous, as batches are gathered row by row.
    features = np.ascontiguousarray(np.hstack([real, probes]))
    return torch.from_numpy(2 * features - 1), torch.from_numpy(labels)
