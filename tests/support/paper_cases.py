"""Shared cases of the papers' claims: shapes of networks, metered bits, many draws of a code."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from method_cases import aggregate, build_method
from torch import Tensor, nn
from torchvision import models

from gcbench.core.codec import Codec
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State, Step
from gcbench.runner.models.cifar_resnet import resnet20, resnet56, resnet110
from gcbench.runner.models.lstm import LSTM
from gcbench.runner.models.resnet import resnet18

Shapes = dict[str, tuple[int, ...]]

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "alexnet": models.alexnet,
    "vgg19": models.vgg19,
    "densenet161": models.densenet161,
    "googlenet": lambda: models.googlenet(init_weights=False),
    "resnet50": models.resnet50,
    "resnet152": models.resnet152,
    "resnet18 of cifar": lambda: resnet18((3, 32, 32), 10),
    "resnet20 of cifar": lambda: resnet20((3, 32, 32), 10),
    "resnet56 of cifar": lambda: resnet56((3, 32, 32), 10),
    "resnet110 of cifar": lambda: resnet110((3, 32, 32), 10),
    "lstm": lambda: LSTM(28869),
}


@cache
def shapes_of(network: str) -> Shapes:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in NETWORKS[network]().named_parameters()}


def sizes(shapes: Shapes) -> list[int]:
    return [torch.Size(shape).numel() for shape in shapes.values()]


def sent_bits(shapes: Shapes, choice: str, **settings: Any) -> int:
    """Return the bits metered in one step of one worker.

    Gradients are zeros, so the bits are wrong for codes of variable length.
    """
    comm = Comm(1)
    grads = {name: torch.zeros(1, *shape) for name, shape in shapes.items()}
    aggregate(build_method(choice, **settings), grads, comm=comm, state=State())
    return comm.meter.sent_bits[0]


def decode_rows(codec: Codec, rows: Tensor, number: int = 0) -> Tensor:
    """Return rows `[w, n]` after encoding and decoding, each by a worker of its own, in float64.

    Nothing is gathered, so many rows cost little.
    """
    segments = (rows.shape[1],)
    noise = Step(number, 1, range(len(rows)), {"w": 0}).noise(
        "codec", {"w": rows.shape[1]}, rows.device
    )
    out = torch.zeros_like(rows)
    codec.decode_add(codec.encode(rows, segments, noise), segments, out)
    return out.double()
