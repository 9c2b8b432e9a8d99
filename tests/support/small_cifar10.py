"""CIFAR-10's files with few images, for tests that read them as a run does."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np


def write_cifar10(root: Path, rows: np.ndarray, labels: list[int]) -> None:
    """Write the images `[n, 3072]` as each of CIFAR-10's six files under `root`."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": labels}))
    names = {"label_names": [str(label) for label in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))
