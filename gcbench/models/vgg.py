"""VGG-16 (Simonyan and Zisserman, "Very deep convolutional networks", ICLR 2015) with batch normalisation.

torchvision's convolutions, but a single linear layer on top, as is usual for CIFAR.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn
from torchvision.models.vgg import cfgs, make_layers


def vgg16(shape: Sequence[int], outputs: int) -> nn.Module:
    channels, height, width = shape
    if min(height, width) < 32:
        raise ValueError(
            f"model=vgg16 halves its input five times and cannot read images of {height} x {width}; "
            "type a data set of 32 x 32 or more, such as dataset=cifar10, or a model such as model=resnet20"
        )
    features = make_layers(cfgs["D"], batch_norm=True)
    features[0] = nn.Conv2d(channels, 64, kernel_size=3, padding=1)
    head = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "classifier": nn.Linear(512, outputs)}
    model = nn.Sequential(OrderedDict({"features": features, **head}))
    model.apply(_start)
    return model


def _start(module: nn.Module) -> None:
    """torchvision's own initial weights for VGG."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
