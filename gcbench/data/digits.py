"""scikit-learn's digits: 1,797 images of 8 x 8, a set that needs no files and trains in seconds.

Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning Repository,
1998.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gcbench.data.arrays import ArrayData
from gcbench.data.split import Split


def digits(test_fraction: float = 0.2, split: Split = "test") -> ArrayData:
    """Return scikit-learn's digits in a stratified split that no seed changes.

    By default 1,437 images are to train on and 360 to test on.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(
            f"dataset.test_fraction={test_fraction} is not between 0 and 1; type 0.2, say"
        )
    source = load_digits()
    labels = source.target
    rows = np.arange(len(labels))
    kept, held = train_test_split(rows, test_size=test_fraction, stratify=labels, random_state=0)
    images = torch.from_numpy(source.images).to(torch.uint8).unsqueeze(1)
    targets = torch.from_numpy(labels).long()
    deviation, mean = torch.std_mean(images[kept].double())
    pixels = (mean.float(), deviation.float())
    train, test = ((images[part], targets[part]) for part in (kept, held))
    return ArrayData("digits", "classification", 10, train, test, pixels).score_on(split)
