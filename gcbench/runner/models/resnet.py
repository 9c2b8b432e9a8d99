"""ResNet-18 and ResNet-50 (He et al., "Deep residual learning for image recognition", CVPR 2016).

They are torchvision's, but start with a 3 x 3 convolution of stride 1 and without pooling, since
the stem for ImageNet would shrink 32 x 32 images to 8 x 8 before the first block.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchvision import models


def resnet18(shape: Sequence[int], outputs: int) -> nn.Module:
    return _small_stem(models.resnet18(num_classes=outputs), shape[0])


def resnet50(shape: Sequence[int], outputs: int) -> nn.Module:
    return _small_stem(models.resnet50(num_classes=outputs), shape[0])


def _small_stem(model: nn.Module, channels: int) -> nn.Module:
    stem = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1, model.maxpool = stem, nn.Identity()
    return model
