"""Signs with one scale: scaled signSGD and PowerSGD's Sign + Norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.chunks import chunks
from gcbench.codecs.means import mean_magnitude
from gcbench.codecs.noise import Noise
from gcbench.codecs.packing import pack, unpack
from gcbench.compressors.base import Properties
from gcbench.compressors.bucketed import Bucketed
from gcbench.compressors.exchange import Message


@dataclass(frozen=True)
class ScaledSign(Bucketed):
    """Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019, algorithm 1; ORQ's
    baseline "Scaled SignSGD" (equation 13) and, a scale a tensor and with error feedback, PowerSGD's "Sign + Norm":

        Q(v) = (||v||_1 / d) sign(v)    for the d values v of a tensor or of a bucket

    The nearest to v of all signs with one magnitude: ||Q(v) - v||^2 = (1 - ||v||_1^2 / (d ||v||_2^2)) ||v||_2^2. Deterministic
    and biased.

    Sends one bit a value and a float32 scale a bucket or tensor.

    Differences from the papers: sign(0) = +1, as a bit has no third value; the error above stays the same. ORQ prints one scale
    for the whole gradient and experiments with buckets; buckets restart at every tensor.
    """

    properties: ClassVar[Properties] = Properties(contractive=True)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        scales = self.buckets(segments, x.device).reduce(x, mean_magnitude)
        return [pack((x >= 0).view(torch.uint8), 1), scales]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        packed, scales = message
        buckets = self.buckets(segments, out.device)
        signs = unpack(packed, out.shape[1], 1).view(torch.bool)
        for start, stop in chunks(out.shape[1], out.device):
            scale = buckets.expand(scales, start, stop)
            out[:, start:stop] += torch.where(signs[:, start:stop], scale, -scale)
