"""Random crops and flips: those of He et al. (CVPR 2016) for CIFAR, of GoogLeNet for ImageNet."""

from __future__ import annotations

from math import exp, log, sqrt
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import pad


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Return each image cropped at a random place, and mirrored half of the time.

    It is padded with zeros before and keeps its size. Expects raw pixels: torchvision's pipelines
    pad with black before they normalize, and so does this.
    """
    count, channels, height, width = images.shape

    def draw(high: int) -> Tensor:
        return torch.randint(high, (count, 1), generator=generator, device=images.device)

    across = torch.arange(width, device=images.device)
    rows = draw(2 * padding + 1) + torch.arange(height, device=images.device)
    columns = draw(2 * padding + 1) + torch.where(draw(2).bool(), across.flip(0), across)
    image = torch.arange(count, device=images.device)[:, None, None, None]
    # The channels are indexed too, since a slice there would yield a channels-last batch.
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return pad(images, (padding,) * 4)[
        image, channel, rows[:, None, :, None], columns[:, None, None, :]
    ]


def crop_box(height: int, width: int, chance: Random) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a random part of an image.

    It has 8 to 100 % of the area at a ratio of 3:4 to 4:3, as torchvision's RandomResizedCrop draws
    it: ten trials, then the largest box at the center.
    """
    for _ in range(10):
        area = height * width * chance.uniform(0.08, 1)
        ratio = exp(chance.uniform(-log(4 / 3), log(4 / 3)))
        rows, columns = round(sqrt(area / ratio)), round(sqrt(area * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            return (
                int(chance.random() * (height - rows + 1)),
                int(chance.random() * (width - columns + 1)),
                rows,
                columns,
            )
    rows, columns = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    return (height - rows) // 2, (width - columns) // 2, rows, columns
