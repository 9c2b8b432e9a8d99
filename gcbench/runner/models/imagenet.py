"""Networks for ImageNet: torchvision's, unchanged.

AlexNet is that of Krizhevsky, "One weird trick for parallelizing convolutional neural networks"
(2014), with 61.1 M parameters; the two-column one of 2012 has 62.4 M. VGG-19: Simonyan and
Zisserman, ICLR 2015, without batch normalization. ResNet-50 and -152: He et al., CVPR 2016.
GoogLeNet: Szegedy et al., "Going deeper with convolutions", CVPR 2015, with batch normalization.
DenseNet-161: Huang et al., CVPR 2017. Parameter counts are those for a thousand classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision import models

SMALLEST = 64  # pixels per side


def alexnet(shape: Sequence[int], outputs: int) -> nn.Module:
    check_images("alexnet", shape)
    return models.alexnet(num_classes=outputs)


def vgg19(shape: Sequence[int], outputs: int) -> nn.Module:
    check_images("vgg19", shape)
    return models.vgg19(num_classes=outputs)


def resnet50(shape: Sequence[int], outputs: int) -> nn.Module:
    check_images("resnet50_imagenet", shape)
    return models.resnet50(num_classes=outputs)


def resnet152(shape: Sequence[int], outputs: int) -> nn.Module:
    check_images("resnet152_imagenet", shape)
    return models.resnet152(num_classes=outputs)


def densenet161(shape: Sequence[int], outputs: int) -> nn.Module:
    check_images("densenet161", shape)
    return models.densenet161(num_classes=outputs)


class GoogLeNet(nn.Module):
    """torchvision's GoogLeNet, which returns only the main classifier's outputs.

    No loss reaches the auxiliary classifiers, whose gradients are sent as zeros.
    """

    def __init__(self, shape: Sequence[int], outputs: int, auxiliary: bool = False) -> None:
        check_images("googlenet_imagenet", shape)
        super().__init__()
        self.network = models.googlenet(
            num_classes=outputs, aux_logits=auxiliary, init_weights=True
        )

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.network(images)
        return outputs if isinstance(outputs, Tensor) else outputs.logits


def check_images(name: str, shape: Sequence[int]) -> None:
    channels, height, width = shape
    if channels != 3 or min(height, width) < SMALLEST:
        raise ValueError(
            f"model={name} reads color images of {SMALLEST} x {SMALLEST} or more, not {channels} "
            f"x {height} x {width}; type dataset=imagenet, or a model for small images such as "
            "model=resnet20"
        )
