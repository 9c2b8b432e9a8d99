"""Data that a random linear teacher labels: as large, as wide and as noisy as asked for."""

from __future__ import annotations

from typing import Literal

import torch

from gcbench.data.arrays import ArrayData, Pair


def synthetic(
    task: Literal["classification", "regression"] = "classification",
    samples: int = 10_000,
    features: int = 64,
    outputs: int = 10,
    noise: float = 0.1,
    seed: int = 0,
) -> ArrayData:
    """Normal inputs, and the teacher's noisy outputs (regression) or the largest of them (classification).

    The test split has a fifth as many samples as the training split and comes from the same teacher.
    """
    if task not in ("classification", "regression"):
        raise ValueError(f"dataset.task={task} is unknown; type classification or regression")
    generator = torch.Generator().manual_seed(seed)

    # In double precision, so that the labels do not hang on how many threads share the product.
    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    teacher = normal(features, outputs) / features**0.5

    def split(rows: int) -> Pair:
        inputs = normal(rows, features)
        scores = inputs @ teacher + noise * normal(rows, outputs)
        return inputs.float(), scores.argmax(1) if task == "classification" else scores.float()

    train, test = split(samples), split(max(1, samples // 5))
    return ArrayData("synthetic", task, outputs, train, test)
