"""Proteins with 90 random features: a linear regression of the size of YearPredictionMSD.

Rana, "Physicochemical Properties of Protein Tertiary Structure", UCI Machine Learning Repository,
2013; Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", NeurIPS 2007.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gcbench.core.fields import Count
from gcbench.runner.data.arrays import ArrayData, Pair
from gcbench.runner.data.protocol import hold_out
from gcbench.runner.settings.groups import Split

SITE = "https://github.com/treforevans/uci_datasets, where it is uci_datasets/protein/data.csv.gz"


def protein(root: str, features: Count = 90, split: Split = "test") -> ArrayData:
    """Return 36,584 training and 9,146 test proteins of `<root>/regression/protein.csv.gz`.

    A row has nine properties x and a target, centered. Features are cos(w x' + b) of the
    properties x', standardized over the training part, with w drawn from N(0, 1/9) and b from
    [0, 2 pi]. Neither they nor the split depend on the run's seed.
    """
    file = Path(root).expanduser() / "regression" / "protein.csv.gz"
    if not file.is_file():
        raise ValueError(
            f"dataset=protein: there is no {file}; get it from {SITE}, or set data.root=... to the "
            "folder that holds regression/"
        )
    rows = np.loadtxt(file, delimiter=",")
    kept, held = (part.numpy() for part in hold_out(len(rows), share=5))
    properties, targets = rows[:, :-1], rows[:, -1:]
    mean, deviation = properties[kept].mean(0), properties[kept].std(0)
    random = np.random.default_rng(0)
    count = properties.shape[1]
    directions = random.normal(scale=count**-0.5, size=(count, features))
    phases = random.uniform(0, 2 * np.pi, features)
    inputs = np.cos((properties - mean) / deviation @ directions + phases)

    def pair(part: np.ndarray) -> Pair:
        x, y = inputs[part].astype(np.float32), targets[part].astype(np.float32)
        return torch.from_numpy(x), torch.from_numpy(y)

    return ArrayData("protein", "regression", 1, pair(kept), pair(held)).score_on(split)
