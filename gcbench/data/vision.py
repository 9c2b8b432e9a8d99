"""CIFAR-10, CIFAR-100 (Krizhevsky, 2009) and MNIST (LeCun et al., 1998) by torchvision.

The means and deviations are those of the training pixels, written out so that no run computes its
own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchvision import datasets

from gcbench.data.arrays import ArrayData, Pair
from gcbench.data.augment import Augmentation, CropFill, CropPadding, Flip
from gcbench.data.split import Split


def cifar10(
    root: str,
    download: bool = True,
    augment: bool = True,
    crop_padding: CropPadding = 4,
    crop_fill: CropFill = "zeros",
    flip: Flip = "random",
    split: Split = "test",
) -> ArrayData:
    train, test = _cifar("cifar10", datasets.CIFAR10, Path(root).expanduser(), download)
    pixels = _pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    augmentation = Augmentation(crop_padding, crop_fill, flip) if augment else None
    return ArrayData("cifar10", "classification", 10, train, test, pixels, augmentation).score_on(
        split
    )


def cifar100(
    root: str,
    download: bool = True,
    augment: bool = True,
    crop_padding: CropPadding = 4,
    crop_fill: CropFill = "zeros",
    flip: Flip = "random",
    split: Split = "test",
) -> ArrayData:
    train, test = _cifar("cifar100", datasets.CIFAR100, Path(root).expanduser(), download)
    pixels = _pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    augmentation = Augmentation(crop_padding, crop_fill, flip) if augment else None
    return ArrayData("cifar100", "classification", 100, train, test, pixels, augmentation).score_on(
        split
    )


def mnist(root: str, download: bool = True, split: Split = "test") -> ArrayData:
    train, test = _splits("mnist", datasets.MNIST, Path(root).expanduser(), "MNIST/raw", download)
    pixels = _pixels((0.1307,), (0.3081,))
    train, test = ((part.data.unsqueeze(1), part.targets) for part in (train, test))
    return ArrayData("mnist", "classification", 10, train, test, pixels).score_on(split)


def _cifar(
    name: str, reader: type[datasets.CIFAR10], root: Path, download: bool
) -> tuple[Pair, Pair]:
    folder = root / reader.base_folder
    names = [row[0] for row in reader.train_list + reader.test_list] + [reader.meta["filename"]]
    if all((folder / file).is_file() for file in names):
        train, test = _read_official(name, reader, root)
    else:
        train, test = _splits(name, reader, root, reader.base_folder, download)
    return _pair(train), _pair(test)


def _read_official(name: str, reader: type[datasets.CIFAR10], root: Path) -> tuple[Any, Any]:
    try:
        return reader(root, train=True), reader(root, train=False)
    except RuntimeError:
        warnings.warn(
            f"dataset={name}: the files under {root / reader.base_folder} are not the official "
            "ones (the md5 differs) but are read all the same",
            stacklevel=4,
        )
    unchecked = _without_md5(reader)
    return unchecked(root, train=True), unchecked(root, train=False)


def _without_md5(reader: type[datasets.CIFAR10]) -> type[datasets.CIFAR10]:
    """Return the same reader without md5 sums, which checks only that the files exist."""
    sums = {
        "train_list": [(row[0], None) for row in reader.train_list],
        "test_list": [(row[0], None) for row in reader.test_list],
        "meta": {**reader.meta, "md5": None},
    }
    return type(reader.__name__, (reader,), sums)


def _splits(
    name: str, reader: Callable[..., Any], root: Path, folder: str, download: bool
) -> tuple[Any, Any]:
    try:
        return reader(root, train=True, download=download), reader(
            root, train=False, download=download
        )
    except (OSError, RuntimeError) as error:
        # torchvision spreads its account of failed mirrors over several lines.
        cause = " ".join(str(error).split())
        reason = f"the download failed ({cause})" if download else "dataset.download=false"
        raise ValueError(
            f"dataset={name}: no files under {root} and {reason}; put {folder}/ there or set "
            "data.root=... to the folder that holds it"
        ) from error


def _pair(split: datasets.CIFAR10) -> Pair:
    return torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(
        split.targets
    )


def _pixels(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Pair:
    """Return mean and deviation by channel for pixels from 0 to 255, from those for 0 to 1."""
    raw = 255 * torch.tensor([mean, deviation])
    return raw[0].view(-1, 1, 1), raw[1].view(-1, 1, 1)
