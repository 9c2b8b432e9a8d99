"""Random crop and horizontal flip of a whole batch: the CIFAR augmentation of He et al. (CVPR 2016)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Each image padded with zeros, cropped to its old size at a random place, and mirrored half of the time.

    Expects raw pixels: torchvision's pipelines pad with black before they normalise, and so does this.
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
    return pad(images, (padding,) * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
