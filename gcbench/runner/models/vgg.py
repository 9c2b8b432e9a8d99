"""VGG (Simonyan and Zisserman, ICLR 2015) with batch normalization.

"Very deep convolutional networks for large-scale image recognition".

It has torchvision's convolutions but a single linear layer on top, as is usual for CIFAR.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn
from torchvision.models.vgg import cfgs, make_layers

VGG8: list[str | int] = [8, "M", 16, 16, "M", 32, 32, "M", 64, 64, "M"]


def vgg8(shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a VGG for small budgets, with seven convolutions of few channels.

    It is not from a paper.
    """
    return _build("vgg8", VGG8, shape, outputs)


def vgg16(shape: Sequence[int], outputs: int) -> nn.Module:
    return _build("vgg16", cfgs["D"], shape, outputs)


def _build(name: str, layers: Sequence[str | int], shape: Sequence[int], outputs: int) -> nn.Module:
    channels, height, width = shape
    halvings = layers.count("M")
    if min(height, width) < 2**halvings:
        raise ValueError(
            f"model={name} halves its input {halvings} times and cannot read images of {height} x "
            f"{width}; type a data set of {2**halvings} x {2**halvings} or more, such as "
            "dataset=cifar10, or a model such as model=resnet20"
        )
    features = make_layers(layers, batch_norm=True)
    widths = [layer for layer in layers if isinstance(layer, int)]
    features[0] = nn.Conv2d(channels, widths[0], kernel_size=3, padding=1)
    head = {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "classifier": nn.Linear(widths[-1], outputs),
    }
    model = nn.Sequential(OrderedDict({"features": features, **head}))
    model.apply(_start)
    return model


def _start(module: nn.Module) -> None:
    """Initialize weights as torchvision does for VGG."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
