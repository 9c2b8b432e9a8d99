"""Three levels, best for normal values, five codes in a byte."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from gcbench import Codec, Properties

CHUNK, THRESHOLD = 1024, 0.612
POWERS = [1, 3, 9, 27, 81]


@dataclass(frozen=True)
class Thirds(Codec):
    """-s, 0 or s for every value: 1.6 bits, and a float32 scale per 1,024 values.

    A value is 0 below 0.612 rms, as is best for the normal law. The scale is |x|^2 / <x, q>, with
    which rotated values are coded without bias.
    """

    properties: ClassVar[Properties] = Properties(scope="global")

    def encode(self, x, segments, noise) -> list[Tensor]:
        chunks = pad(x, (0, -x.shape[1] % CHUNK)).unflatten(1, (-1, CHUNK))
        rms = chunks.square().mean(2, keepdim=True).sqrt()
        q = chunks.sign() * (chunks.abs() > THRESHOLD * rms)
        along = (chunks * q).sum(2)
        scale = torch.where(along > 0, chunks.square().sum(2) / along, 0)
        digits = pad((q + 1).flatten(1), (0, -q[0].numel() % 5)).unflatten(1, (-1, 5))
        return [(digits @ digits.new_tensor(POWERS)).to(torch.uint8), scale]

    def decode_add(self, message, segments, out) -> None:
        codes, scale = message
        powers = torch.tensor(POWERS, device=out.device)
        digits = codes.int().unsqueeze(2).div(powers, rounding_mode="floor") % 3 - 1
        q = digits.flatten(1)[:, : scale.shape[1] * CHUNK].unflatten(1, (-1, CHUNK))
        out += (q * scale.unsqueeze(2)).flatten(1)[:, : out.shape[1]]
