"""The narrow ResNets for CIFAR (He et al., CVPR 2016, section 4.2).

"Deep residual learning for image recognition".

Three stages have 16, 32 and 64 channels and (depth - 2) / 6 blocks each; shortcuts have no
parameters (option A). Weights are initialized as in He et al., "Delving deep into rectifiers", ICCV
2015.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import pad, relu


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut.

    At a new stage the shortcut drops pixels and adds zero channels.
    """

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.added = channels - channels_in
        self.stride = 2 if self.added else 1
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = relu(self.bn1(self.conv1(inputs)))
        shortcut = inputs[:, :, :: self.stride, :: self.stride]
        shortcut = pad(shortcut, (0, 0, 0, 0, self.added // 2, self.added // 2))
        return relu(self.bn2(self.conv2(hidden)) + shortcut)


def _build(depth: int, shape: Sequence[int], outputs: int, stem_stride: int = 1) -> nn.Module:
    widths = [width for width in (16, 32, 64) for _ in range((depth - 2) // 6)]
    model = nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, stride=stem_stride, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *map(Block, [16, *widths], widths),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, outputs),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model


def resnet8(shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a ResNet with one block per stage and a stem of stride 2; it is not from a paper.

    It takes a quarter of the computation of one without that stride.
    """
    return _build(8, shape, outputs, stem_stride=2)


def resnet20(shape: Sequence[int], outputs: int) -> nn.Module:
    return _build(20, shape, outputs)


def resnet32(shape: Sequence[int], outputs: int) -> nn.Module:
    return _build(32, shape, outputs)


def resnet56(shape: Sequence[int], outputs: int) -> nn.Module:
    return _build(56, shape, outputs)


def resnet110(shape: Sequence[int], outputs: int) -> nn.Module:
    return _build(110, shape, outputs)
