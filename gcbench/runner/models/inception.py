"""GoogLeNet for CIFAR and BN-Inception for ImageNet, both batch-normalized throughout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from gcbench.runner.models.imagenet import check_images

Pool = Literal["max", "average"]


class Widths(NamedTuple):
    """Channels of a block, as in one row of the papers' tables.

    0 means that the branch is missing, or that the pool is not projected.
    """

    single: int  # 1 x 1
    reduced: int  # 1 x 1 before the 3 x 3
    triple: int  # 3 x 3
    reduced_double: int  # 1 x 1 before the two 3 x 3
    double: int  # each of the two 3 x 3
    pooled: int  # 1 x 1 after the pool

    def scale(self, width: float) -> Widths:
        return Widths(*(round(width * channels) for channels in self))


class Inception(nn.Module):
    """Four parallel branches; at stride 2 the 1 x 1 is left out and the pool keeps its channels."""

    def __init__(self, channels_in: int, widths: Widths, pool: Pool, stride: int = 1) -> None:
        super().__init__()
        single, reduced, triple, reduced_double, double, pooled = widths
        pooling = (
            nn.MaxPool2d(3, stride, padding=1)
            if pool == "max"
            else nn.AvgPool2d(3, stride, padding=1)
        )
        self.branches = nn.ModuleList(
            [
                nn.Sequential(_conv(channels_in, reduced, 1), _conv(reduced, triple, 3, stride)),
                nn.Sequential(
                    _conv(channels_in, reduced_double, 1),
                    _conv(reduced_double, double, 3),
                    _conv(double, double, 3, stride),
                ),
                nn.Sequential(pooling, _conv(channels_in, pooled, 1)) if pooled else pooling,
            ]
        )
        if single:
            self.branches.insert(0, _conv(channels_in, single, 1))
        self.channels = single + triple + double + (pooled or channels_in)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([branch(inputs) for branch in self.branches], dim=1)


def _conv(channels_in: int, channels: int, kernel: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU())


GOOGLENET = (
    (Widths(64, 96, 128, 16, 32, 32), Widths(128, 128, 192, 32, 96, 64)),
    (
        Widths(192, 96, 208, 16, 48, 64),
        Widths(160, 112, 224, 24, 64, 64),
        Widths(128, 128, 256, 24, 64, 64),
        Widths(112, 144, 288, 32, 64, 64),
        Widths(256, 160, 320, 32, 128, 128),
    ),
    (Widths(256, 160, 320, 32, 128, 128), Widths(384, 192, 384, 48, 128, 128)),
)


def googlenet(
    shape: Sequence[int],
    outputs: int,
    width: float = 1.0,
    blocks: Sequence[int] = (2, 5, 2),
    stem_stride: int = 1,
) -> nn.Module:
    """Return GoogLeNet in its usual form for CIFAR.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1.

    Differences from the paper: the stem is one 3 x 3 convolution (of `stem_stride`), a 5 x 5 is two
    3 x 3, everything is batch-normalized, and there is neither dropout nor an auxiliary classifier.
    `width` multiplies all channels, and `blocks` is how many blocks each stage keeps.
    """
    kept = len(blocks) == 3 and all(
        1 <= n <= len(rows) for n, rows in zip(blocks, GOOGLENET, strict=True)
    )
    if width < 1 / 16 or stem_stride < 1 or not kept:
        raise ValueError(
            f"model.width={width} model.blocks={list(blocks)} model.stem_stride={stem_stride}: "
            "GoogLeNet has three stages of 1 to 2, 5 and 2 blocks; type a width from 0.0625, "
            "blocks such as model.blocks=[2,5,2] and a stride of 1 or more"
        )
    channels = round(192 * width)
    parts: list[nn.Module] = [_conv(shape[0], channels, 3, stem_stride)]
    for stage, (rows, count) in enumerate(zip(GOOGLENET, blocks, strict=True)):
        if stage:
            parts.append(nn.MaxPool2d(3, stride=2, padding=1))
        for row in rows[:count]:
            parts.append(block := Inception(channels, row.scale(width), "max"))
            channels = block.channels
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)
    )


BN_INCEPTION: tuple[tuple[Widths, Pool, int], ...] = (
    (Widths(64, 64, 64, 64, 96, 32), "average", 1),  # 3a
    (Widths(64, 64, 96, 64, 96, 64), "average", 1),
    (Widths(0, 128, 160, 64, 96, 0), "max", 2),
    (Widths(224, 64, 96, 96, 128, 128), "average", 1),  # 4a
    (Widths(192, 96, 128, 96, 128, 128), "average", 1),
    (Widths(160, 128, 160, 128, 160, 128), "average", 1),
    (Widths(96, 128, 192, 160, 192, 128), "average", 1),
    (Widths(0, 128, 192, 192, 256, 0), "max", 2),
    (Widths(352, 192, 320, 160, 224, 128), "average", 1),  # 5a
    (Widths(352, 192, 320, 192, 224, 128), "max", 1),
)


def bn_inception(shape: Sequence[int], outputs: int) -> nn.Module:
    """Return BN-Inception for ImageNet.

    Ioffe and Szegedy, "Batch normalization", ICML 2015, figure 5.

    The filter columns of the figure are followed; its column of output sizes (576 channels after 4c
    and 4d) is inconsistent with them. Difference from the paper: the first 7 x 7 convolution is an
    ordinary one, not separable.
    """
    check_images("bn_inception", shape)
    parts: list[nn.Module] = [
        _conv(shape[0], 64, 7, stride=2),
        nn.MaxPool2d(3, stride=2, padding=1),
        _conv(64, 64, 1),
        _conv(64, 192, 3),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 192
    for widths, pool, stride in BN_INCEPTION:
        parts.append(block := Inception(channels, widths, pool, stride))
        channels = block.channels
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)
    )
