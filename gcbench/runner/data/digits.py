"""Handwritten digits: 1,797 images of 8 x 8 pixels, which need no download and train in seconds.

Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning Repository,
1998, CC BY 4.0: the part of it that scikit-learn's `load_digits` has. It is stored beside this
module, as importing scikit-learn takes longer than training a model on it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcbench.runner.data.arrays import ArrayData
from gcbench.runner.settings.groups import Split

FILE = Path(__file__).with_suffix(".npz")  # uint8 images [1797, 8, 8] and labels


def digits(test_fraction: float = 0.2, split: Split = "test") -> ArrayData:
    """Return the digits in a stratified split that does not depend on the seed.

    By default there are 1,437 training images and 360 test images.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(
            f"dataset.test_fraction={test_fraction} is not between 0 and 1; type 0.2, say"
        )
    with np.load(FILE) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        targets = torch.from_numpy(arrays["labels"]).long()
    kept, held = _split_by_class(targets, test_fraction)
    deviation, mean = torch.std_mean(images[kept].double())
    pixels = (mean.float(), deviation.float())
    train, test = ((images[part], targets[part]) for part in (kept, held))
    return ArrayData("digits", "classification", 10, train, test, pixels).score_on(split)


def _split_by_class(targets: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Return training rows and test rows; the latter are a `fraction` of every class."""
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    by_class = order[targets[order].argsort(stable=True)]
    # A row is held out whenever the number of rows so far, times `fraction`, passes a whole number:
    # this spreads the held-out rows evenly over the classes.
    reached = (torch.arange(len(targets) + 1) * fraction).ceil()
    held = torch.zeros(len(targets), dtype=torch.bool)
    held[by_class] = reached.diff().bool()
    return order[~held[order]], order[held[order]]
