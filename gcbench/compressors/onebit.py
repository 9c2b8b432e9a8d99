"""1BitSGD: signs with the mean of each side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.chunks import chunks
from gcbench.codecs.means import mean_where
from gcbench.codecs.noise import Noise
from gcbench.codecs.packing import pack, unpack
from gcbench.compressors.base import Properties
from gcbench.compressors.bucketed import Bucketed
from gcbench.compressors.exchange import Message


@dataclass(frozen=True)
class OneBit(Bucketed):
    """Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
    DNNs", Interspeech 2014; the baseline 1BitSGD of QSGD. For a bucket v of d consecutive values of a tensor:

        Q(v_i) = mean of {v_j : v_j >= 0} where v_i >= 0,    mean of {v_j : v_j < 0} where v_i < 0

    the nearest to v of all codes that threshold at zero. Deterministic and biased: made for error feedback.

    Sends one bit a value and two float32 reconstruction points a bucket.

    Differences from the paper: buckets stand for the columns of a weight matrix. With the default exchange every worker
    gathers all codes, where the paper's workers each average a stripe of the gradient and quantise it again.
    """

    properties: ClassVar[Properties] = Properties(contractive=True)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        buckets = self.buckets(segments, x.device)
        below = buckets.reduce(x, lambda v: mean_where(v, v < 0))
        above = buckets.reduce(x, lambda v: mean_where(v, v >= 0))
        return [pack((x >= 0).view(torch.uint8), 1), below, above]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        packed, below, above = message
        buckets = self.buckets(segments, out.device)
        signs = unpack(packed, out.shape[1], 1).view(torch.bool)
        for start, stop in chunks(out.shape[1], out.device):
            low, high = buckets.expand(below, start, stop), buckets.expand(above, start, stop)
            out[:, start:stop] += torch.where(signs[:, start:stop], high, low)
