"""CIFAR-10, CIFAR-100 (Krizhevsky, 2009) and MNIST (LeCun et al., 1998), read by torchvision.

The means and standard deviations of the training pixels are written out so that no run has to
compute them.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torchvision import datasets

from gcbench.runner.data.arrays import ArrayData, Pair
from gcbench.runner.data.augment import Augmentation
from gcbench.runner.settings.groups import CropFill, CropPadding, Flip, Split

# What unpickling an array has to call, by module and name.
ARRAY_PARTS = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}
Channels = tuple[float, ...]  # one number for each color
WRONG_CONTENT = (ValueError, TypeError, AttributeError)  # of pickles with other content


def _cifar_factory(
    reader: type[datasets.CIFAR10], outputs: int, mean: Channels, deviation: Channels
) -> Callable[..., ArrayData]:
    """Return the factory of a data set that torchvision reads as it does CIFAR-10."""
    name = reader.__name__.lower()

    def factory(
        root: str,
        download: bool = True,
        augment: bool = True,
        crop_padding: CropPadding = 4,
        crop_fill: CropFill = "zeros",
        flip: Flip = "random",
        split: Split = "test",
    ) -> ArrayData:
        parts = _read_cifar(name, reader, Path(root).expanduser(), download)
        augmentation = Augmentation(crop_padding, crop_fill, flip) if augment else None
        pixels = _pixels(mean, deviation)
        data = ArrayData(name, "classification", outputs, *parts, pixels, augmentation)
        return data.score_on(split)

    return factory


cifar10 = _cifar_factory(
    datasets.CIFAR10, 10, mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616)
)
cifar100 = _cifar_factory(
    datasets.CIFAR100, 100, mean=(0.5071, 0.4865, 0.4409), deviation=(0.2673, 0.2564, 0.2762)
)


def mnist(root: str, download: bool = True, split: Split = "test") -> ArrayData:
    train, test = _splits("mnist", datasets.MNIST, Path(root).expanduser(), "MNIST/raw", download)
    pixels = _pixels((0.1307,), (0.3081,))
    train, test = ((part.data.unsqueeze(1), part.targets) for part in (train, test))
    return ArrayData("mnist", "classification", 10, train, test, pixels).score_on(split)


def _read_cifar(
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
    folder = root / reader.base_folder
    train, test = (
        [_read_file(folder / row[0]) for row in rows]
        for rows in (reader.train_list, reader.test_list)
    )
    return _Images.of(train), _Images.of(test)


class _Images(NamedTuple):
    """Images and labels with the attributes of torchvision's data sets."""

    data: np.ndarray  # [N, 32, 32, 3]
    targets: list[int]

    @staticmethod
    def of(files: Sequence[_Images]) -> _Images:
        targets = [target for file in files for target in file.targets]
        return _Images(np.concatenate([file.data for file in files]), targets)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that calls nothing except what rebuilds arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("numpy._core", "numpy.core"), name) not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")
        return super().find_class(module, name)


def _read_file(file: Path) -> _Images:
    try:
        with file.open("rb") as opened:
            content = _ArraysOnly(opened, encoding="latin1").load()
        images = content["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return _Images(images, content.get("labels") or content["fine_labels"])
    except (pickle.UnpicklingError, EOFError, LookupError, *WRONG_CONTENT) as error:
        raise ValueError(f"{file} is not a CIFAR file ({error}); fetch it again") from error


def _splits(
    name: str, reader: Callable[..., Any], root: Path, folder: str, download: bool
) -> tuple[Any, Any]:
    made = [place for place in (root / folder, *(root / folder).parents) if not place.exists()]
    try:
        return reader(root, train=True, download=download), reader(
            root, train=False, download=download
        )
    except (OSError, RuntimeError) as error:
        for place in made:
            with suppress(OSError):  # it holds what was downloaded before, or was not made
                place.rmdir()
        # torchvision reports failed mirrors in several lines.
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


def _pixels(mean: Channels, deviation: Channels) -> Pair:
    """Return mean and standard deviation per channel for pixels up to 255, from those up to 1."""
    raw = 255 * torch.tensor([mean, deviation])
    return raw[0].view(-1, 1, 1), raw[1].view(-1, 1, 1)
