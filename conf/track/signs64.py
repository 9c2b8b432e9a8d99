"""Signs of 64 values, with their mean magnitude."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from gcbench.compressors import Codec, Properties

CHUNK = 64
POWERS = [1, 2, 4, 8, 16, 32, 64, 128]


@dataclass(frozen=True)
class Signs64(Codec):
    """A bit for every sign, and the mean magnitude of 64 values in bfloat16: 1.25 bits a value."""

    properties: ClassVar[Properties] = Properties(scope="global", contractive=True)

    def encode(self, x, segments, noise) -> list[Tensor]:
        chunks = pad(x, (0, -x.shape[1] % CHUNK)).unflatten(1, (-1, CHUNK))
        bits = (chunks < 0).unflatten(2, (-1, 8)).to(torch.uint8)
        signs = (bits * torch.tensor(POWERS, dtype=torch.uint8, device=x.device)).sum(3)
        return [signs.to(torch.uint8).flatten(1), chunks.abs().mean(2).to(torch.bfloat16)]

    def decode_add(self, message, segments, out) -> None:
        signs, means = message
        powers = torch.tensor(POWERS, dtype=torch.uint8, device=out.device)
        negative = (signs.unsqueeze(2) & powers) > 0
        chunks = negative.flatten(1).unflatten(1, (-1, CHUNK))
        scale = means.to(torch.float32).unsqueeze(2)
        out += torch.where(chunks, -scale, scale).flatten(1)[:, : out.shape[1]]
