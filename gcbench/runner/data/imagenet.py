"""ImageNet, or any folder with its layout, decoded batch by batch.

Deng et al., CVPR 2009; Russakovsky et al., IJCV 2015.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms.functional import center_crop, pil_to_tensor, resize, resized_crop

from gcbench.core.codecs.noise import mix
from gcbench.core.fields import Count
from gcbench.runner.data.arrays import epoch_order, part_of
from gcbench.runner.data.augment import crop_box
from gcbench.runner.data.protocol import Kind, Task, hold_out
from gcbench.runner.settings.groups import Split

Files = Sequence[tuple[str, int]]
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def imagenet(
    root: str,
    folder: str = "imagenet",
    size: Count = 224,
    augment: bool = True,
    split: Split = "test",
) -> ImageFiles:
    """Return the images of the folders `train` and `val`.

    The test part is `val`, as ImageNet's own test images have no public labels.
    """
    train, test = _folders(Path(root).expanduser() / folder)
    files: tuple[Files, Files] = (train.samples, test.samples)
    if split == "valid":
        kept, held = (rows.tolist() for rows in hold_out(len(train)))
        files = ([train.samples[row] for row in kept], [train.samples[row] for row in held])
    return ImageFiles(folder, len(train.classes), *files, size, augment)


def _folders(folder: Path) -> tuple[Any, Any]:
    try:
        train, test = ImageFolder(str(folder / "train")), ImageFolder(str(folder / "val"))
    except FileNotFoundError as error:
        raise ValueError(
            f"dataset=imagenet: {folder} lacks train/<wnid>/*.JPEG or val/<wnid>/*.JPEG, and "
            "ImageNet cannot be downloaded automatically; get it from image-net.org and unpack it "
            f"there, or set data.root=... to the folder that holds {folder.name}/"
        ) from error
    if train.classes != test.classes:
        raise ValueError(
            f"dataset=imagenet: train/ and val/ in {folder} hold different classes; put the same "
            "wnids in both"
        )
    return train, test


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files, decoded on demand and divided among workers as in ArrayData.

    With `augment`, training images are cropped to 8 to 100 % of their area at an aspect ratio of
    3:4 to 4:3, resized, and mirrored half of the time; other images are resized to 8/7 of `size` on
    their short side and cropped at the center.
    """

    name: str
    outputs: int
    train: Files
    test: Files
    size: int
    augment: bool
    device: torch.device = torch.device("cpu")
    task: ClassVar[Task] = "classification"
    kind: ClassVar[Kind] = "image"

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, self.size, self.size)

    @property
    def train_samples(self) -> int:
        return len(self.train)

    def to(self, device: torch.device) -> ImageFiles:
        return replace(self, device=device)

    def steps_per_epoch(self, workers: int, batch_size: int) -> int:
        return self.train_samples // (workers * batch_size)

    def batch(
        self, *, epoch: int, step: int, worker: int, workers: int, batch_size: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        order = epoch_order(self.train_samples, seed, epoch, torch.device("cpu"))
        rows = part_of(order, step, worker, workers, batch_size).tolist()
        files = [self.train[row] for row in rows]
        if not self.augment:
            return self._decode(files, self._center)
        return self._decode(
            files,
            self._crop,
            [Random(mix(seed, epoch, step, worker, i)) for i in range(batch_size)],
        )

    def test_batches(self, batch_size: int) -> int:
        return -(-len(self.test) // batch_size)

    def test_batch(self, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
        return self._decode(self.test[index * batch_size : (index + 1) * batch_size], self._center)

    def _decode(
        self, files: Files, transform: Callable[..., Tensor], *extra: Sequence[Any]
    ) -> tuple[Tensor, Tensor]:
        images = torch.stack(
            list(self._pool.map(transform, [path for path, _ in files], *extra))
        ).to(self.device)
        mean, deviation = (
            255 * torch.tensor(v, device=self.device).view(3, 1, 1) for v in (MEAN, DEVIATION)
        )
        return (images.float() - mean) / deviation, torch.tensor(
            [label for _, label in files], device=self.device
        )

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(8, os.cpu_count() or 1), "decode")

    def _crop(self, path: str, chance: Random) -> Tensor:
        """Return a random crop, `[3, size, size]` uint8."""
        image = default_loader(path)
        pixels = pil_to_tensor(
            resized_crop(image, *crop_box(image.height, image.width, chance), self._square)
        )
        return pixels.flip(2) if chance.random() < 0.5 else pixels

    def _center(self, path: str) -> Tensor:
        return pil_to_tensor(
            center_crop(resize(default_loader(path), self.size * 8 // 7), self._square)
        )

    @property
    def _square(self) -> list[int]:
        return [self.size, self.size]
