"""Random crops and flips for CIFAR, as in He et al. (CVPR 2016) or airbench, and for ImageNet.

The crops for ImageNet are GoogLeNet's. Also the views of an image for test-time augmentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import pad

from gcbench.runner.settings.groups import CropFill, Flip


@dataclass(frozen=True)
class Augmentation:
    """Crops off center by at most `crop_padding` pixels, and mirror images.

    Outside an image, `crop_fill` puts black, or its reflection at the border. `flip=alternating`
    mirrors an image in every other epoch (Jordan, arXiv:2404.00498), `random` half of the time.
    """

    crop_padding: int = 4
    crop_fill: CropFill = "zeros"
    flip: Flip = "random"

    def apply(
        self, images: Tensor, generator: torch.Generator, mirrored: Tensor | None = None
    ) -> Tensor:
        """Return each image `[count, channels, height, width]` cropped and perhaps mirrored.

        `mirrored` `[count]` says which are; it is drawn if it is None. Expects raw pixels: images
        are padded with black before they are normalized, as in torchvision's pipelines.
        """
        count, channels, height, width = images.shape

        def draw(high: int) -> Tensor:
            return torch.randint(high, (count, 1), generator=generator, device=images.device)

        padding = self.crop_padding
        across = torch.arange(width, device=images.device)
        rows = draw(2 * padding + 1) + torch.arange(height, device=images.device)
        first_column = draw(2 * padding + 1)
        flipped = draw(2).bool() if mirrored is None else mirrored[:, None]
        columns = first_column + torch.where(flipped, across.flip(0), across)
        if self.crop_fill == "zeros":
            images = pad(images, (padding,) * 4)
        else:
            rows = _reflect(rows - padding, height)
            columns = _reflect(columns - padding, width)
        image = torch.arange(count, device=images.device)[:, None, None, None]
        # The channels are indexed too, since a slice there would yield a channels-last batch.
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        return images[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def tta_views(images: Tensor) -> list[tuple[float, Tensor]]:
    """Return six pairs (weight, view) of images `[count, channels, height, width]`.

    Test-time augmentation averages the outputs for the views by these weights, which sum to 1, as
    airbench does (Jordan, arXiv:2404.00498, `tta_level=2`). The views are the images and their
    mirror images, unshifted (weight 1/4 each), and both shifted diagonally by a pixel in either
    direction, with reflection at the border (1/8 each).
    """
    height, width = images.shape[-2:]
    padded = pad(images, (1,) * 4, mode="reflect")
    shifted = [padded[..., at : at + height, at : at + width] for at in (0, 2)]
    upright = [(1 / 4, images), *[(1 / 8, view) for view in shifted]]
    return [(weight, side) for weight, view in upright for side in (view, view.flip(-1))]


def _reflect(places: Tensor, size: int) -> Tensor:
    """Return indices that may be outside an image, reflected at its borders."""
    last = size - 1
    return last - (last - places.remainder(2 * last)).abs()


def crop_box(height: int, width: int, chance: Random) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a random part of an image.

    It has 8 to 100 % of the area and an aspect ratio of 3:4 to 4:3. As in torchvision's
    RandomResizedCrop, ten draws are tried before the largest box at the center is taken.
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
