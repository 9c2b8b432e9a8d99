"""Data sets in LIBSVM's text format.

Chang and Lin, "LIBSVM: a library for support vector machines", 2011.
"""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gcbench.core.fields import Count
from gcbench.runner.data.arrays import ArrayData, Pair
from gcbench.runner.data.protocol import hold_out
from gcbench.runner.settings.groups import Split

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"


def libsvm(
    root: str,
    name: str,
    features: Count,
    task: Literal["classification", "regression"] = "classification",
    scale: bool = False,
    test_file: bool = False,
    split: Split = "test",
) -> ArrayData:
    """Return the rows of `<root>/libsvm/<name>`, split into training and test rows.

    With `test_file` the test rows are those of `<name>.t`, else a fifth that does not depend on the
    run's seed.

    Labels become classes from 0 in numerical order; for regression they keep their unit. `scale`
    maps each feature to [-1, 1] by its range in the training rows, as svm-scale does, and a
    constant one to 0.
    """
    folder = Path(root).expanduser() / "libsvm"
    inputs, labels = _read(folder, name, features)
    if test_file:
        test_inputs, test_labels = _read(folder, f"{name}.t", features)
    else:
        kept, held = (rows.numpy() for rows in hold_out(len(labels), share=5))
        test_inputs, test_labels = inputs[held], labels[held]
        inputs, labels = inputs[kept], labels[kept]
    if scale:
        low, high = inputs.min(0), inputs.max(0)
        width = np.where(high > low, high - low, np.inf)
        inputs, test_inputs = (
            np.where(high > low, 2 * (x - low) / width - 1, 0) for x in (inputs, test_inputs)
        )
    classes = np.unique(np.concatenate([labels, test_labels]))

    def pair(x: Any, y: Any) -> Pair:
        rows = torch.from_numpy(x.astype(np.float32))
        if task == "regression":
            return rows, torch.from_numpy(y.astype(np.float32)[:, None])
        return rows, torch.from_numpy(np.searchsorted(classes, y))

    outputs = len(classes) if task == "classification" else 1
    return ArrayData(
        name, task, outputs, pair(inputs, labels), pair(test_inputs, test_labels)
    ).score_on(split)


def _read(folder: Path, name: str, features: int) -> tuple[Any, Any]:
    """Return dense features `[rows, features]` and labels.

    scikit-learn opens .bz2 files by itself, but not .xz files.
    """
    for file in (folder / name, folder / f"{name}.bz2"):
        if file.is_file():
            return _dense(str(file), features)
    if (file := folder / f"{name}.xz").is_file():
        with lzma.open(file) as opened:
            return _dense(opened, features)
    raise ValueError(
        f"dataset.name={name}: there is neither {name} nor {name}.bz2 or .xz in {folder}; get it "
        f"from {SITE}, or set data.root=... to the folder that holds libsvm/"
    )


def _dense(file: Any, features: int) -> tuple[Any, Any]:
    from sklearn.datasets import load_svmlight_file  # slow to import

    rows, labels = load_svmlight_file(file, n_features=features, dtype=np.float32, zero_based=False)
    return rows.toarray(), labels
