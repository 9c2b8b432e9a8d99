"""The network of airbench for CIFAR (Jordan, arXiv:2404.00498), with its widths as knobs.

"94 % on CIFAR-10 in 3.29 seconds on a single GPU"; code: KellerJordan/cifar10-airbench, after
Page's cifar10-fast and Balsters' hlb-CIFAR10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import gelu, max_pool2d

from gcbench.core.fields import Count

STAGES = 3  # each halves the image
PATCH = 2  # side, in pixels, of the patches that the stem whitens
LOGIT_SCALE = 1 / 9
EPSILON = 5e-4  # added to the variances that the stem divides by


class Stage(nn.Module):
    """Two 3 x 3 convolutions, each batch-normalized, with a max-pool after the first.

    The convolutions start as the identity on as many channels as come in (`nn.init.dirac_`); the
    weights of the normalizations stay 1, their biases are trained.
    """

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight[: conv.in_channels])
        for norm in (self.norm1, self.norm2):
            norm.weight.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = gelu(self.norm1(max_pool2d(self.conv1(inputs), 2)))
        return gelu(self.norm2(self.conv2(hidden)))


class AirNet(nn.Module):
    """A frozen convolution that whitens 2 x 2 patches, three stages, a max-pool and a linear layer.

    The paper's network has the widths 64, 256, 256; its stem has a bias, which is trained for three
    epochs. Here the stem has none, so that no gradient flows back to its outputs, the largest
    images. Running statistics give the newest batch the weight 0.1, PyTorch's default, whereas the
    paper's code has 0.4.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        widths: Annotated[
            Sequence[Count], Field(min_length=STAGES, max_length=STAGES, examples=[[64, 256, 256]])
        ] = (64, 256, 256),
    ) -> None:
        channels, height, width = shape
        smallest = PATCH - 1 + 2**STAGES
        if min(height, width) < smallest:
            raise ValueError(
                f"model=airnet halves its input {STAGES} times behind a stem of {PATCH} x {PATCH} "
                f"and cannot read images of {height} x {width}; type a data set of {smallest} x "
                f"{smallest} or more, such as dataset=cifar10, or a model such as model=resnet20"
            )
        super().__init__()
        directions = channels * PATCH**2
        self.stem = nn.Conv2d(channels, 2 * directions, PATCH, bias=False)
        self.stem.weight.requires_grad_(False)
        before = [2 * directions, *widths]
        self.stages = nn.Sequential(*map(Stage, before, widths))
        self.head = nn.Linear(widths[-1], outputs, bias=False)

    @torch.no_grad()
    def initialize_from(self, images: Tensor) -> None:
        """Set the stem's filters to those that whiten these images' patches, and their negatives.

        If patches `[channels * 4]` have the covariance `V diag(s) V'`, the stem's filters are the
        rows of `diag(s + 5e-4)^(-1/2) V'`, so that the second moments of their outputs are (nearly)
        the identity.
        """
        patches = nn.functional.unfold(images, PATCH).transpose(1, 2).flatten(0, 1).double()
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (directions / (variances + EPSILON).sqrt()).T
        self.stem.weight.copy_(torch.cat([filters, -filters]).view_as(self.stem.weight))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stages(gelu(self.stem(images)))
        logits: Tensor = self.head(max_pool2d(hidden, hidden.shape[2:]).flatten(1))
        return LOGIT_SCALE * logits
