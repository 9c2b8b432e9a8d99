"""Conversion of a user's own data to a `Data`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from gcbench.runner.data.arrays import ArrayData, Pair
from gcbench.runner.data.protocol import Data


def as_data(made: object, name: str) -> Data:
    """Return what a user's `make_data` returned, `made`, as a `Data`.

    A `Data` stays as it is; a tuple (train, test) of tensor pairs or map-style datasets becomes an
    `ArrayData`. Anything else raises ValueError.

    Float targets mean regression, integer targets classification. uint8 inputs are divided by 255,
    others are not scaled.
    """
    if isinstance(made, Data):
        return made
    if not (isinstance(made, tuple) and len(made) == 2):
        got = type(made).__name__
        raise ValueError(
            f"dataset={name}: make_data returned {got}; return a tuple (train, test) or a Data"
        )
    train, test = _pair(made[0], f"dataset={name}: train"), _pair(made[1], f"dataset={name}: test")
    if any(
        a.shape[1:] != b.shape[1:] or a.dtype != b.dtype for a, b in zip(train, test, strict=True)
    ):
        raise ValueError(
            f"dataset={name}: train and test differ in shape or type; give both the same"
        )
    pixels = (torch.tensor(0.0), torch.tensor(255.0)) if train[0].dtype == torch.uint8 else None
    if train[1].is_floating_point():
        return ArrayData(name, "regression", train[1].shape[1], train, test, pixels)
    outputs = int(max(train[1].max(), test[1].max())) + 1
    return ArrayData(name, "classification", outputs, train, test, pixels)


def _pair(half: object, where: str) -> Pair:
    if isinstance(half, Dataset):
        half = _stack(half, where)
    if not (
        isinstance(half, tuple)
        and len(half) == 2
        and all(isinstance(part, Tensor) for part in half)
    ):
        raise ValueError(
            f"{where} is not a pair of tensors; return (inputs, targets) or a map-style Dataset"
        )
    inputs, targets = half
    if inputs.ndim not in (2, 4) or not 0 < len(inputs) == len(targets):
        raise ValueError(
            f"{where} has inputs of shape {tuple(inputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}; return [N, features] or [N, channels, height, width] with N "
            "targets"
        )
    return inputs if inputs.dtype == torch.uint8 else inputs.float(), _targets(targets, where)


def _targets(targets: Tensor, where: str) -> Tensor:
    if targets.is_floating_point() and targets.ndim <= 2:
        return targets.float().reshape(len(targets), -1)
    if targets.is_floating_point() or targets.ndim != 1 or targets.min() < 0:
        raise ValueError(
            f"{where} has unknown targets; return class numbers from 0 of shape [N], or floats"
        )
    return targets.long()


def _stack(dataset: Any, where: str) -> Pair:
    try:
        samples = [dataset[row] for row in range(len(dataset))]
        inputs, targets = zip(*samples, strict=True)
        return torch.stack(inputs), torch.stack([torch.as_tensor(target) for target in targets])
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ValueError(
            f"{where} is a Dataset whose samples do not stack ({error}); yield (tensor, target) of "
            "one size"
        ) from error
