"""QSGD: random rounding to evenly spaced levels, a scale a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gcbench.codecs.quantize import NORMS
from gcbench.compressors.base import Properties
from gcbench.compressors.quantizers import SignedGridQuantizer
from gcbench.method_settings import NormKind


@dataclass(frozen=True)
class QSGD(SignedGridQuantizer):
    """Random rounding to evenly spaced levels, with a scale a bucket.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017, section 3.1.

    For a bucket v of d consecutive values of a tensor, with scale ||v||:

        Q_s(v_i) = ||v|| sgn(v_i) xi_i,    xi_i in {0, 1/s, ..., 1} with E[xi_i] = |v_i| / ||v||

    so that E[Q_s(v)] = v and, with the 2-norm, E||Q_s(v) - v||^2 <= min(d / s^2, sqrt(d) / s)
    ||v||^2 (lemma 3.1).

    Sends ceil(log2(2 s + 1)) bits a value (b bits carry s = 2^(b-1) - 1, sign included) and a
    float32 scale a bucket; `code=elias_dense` and `elias_sparse` send the paper's codes instead
    (`entropy_coded.py`).

    Differences from the paper: `norm=linf` (the maximum) is what its experiments use, `l2` is its
    theory. Buckets restart at every tensor, as its experiments reshape matrices, and with
    `align=true` none splits a receptive field; the text's buckets of "each gradient as a
    one-dimensional vector" are `bucket_scope=gradient`. The rounding is of v_i / ||v|| + 1 on the
    grid of both signs, in steps of 2^-23: the same probabilities, but for those below 10^-7.
    """

    norm: NormKind = "linf"

    @property
    def properties(self) -> Properties:
        # Worst variance of a bucket against |v|^2: at most d / (4 s^2), from d values half-way
        # between two levels.
        return Properties(unbiased=True, contractive=self.shorter_than(4 * self.levels**2))

    def scale(self, v: Tensor) -> Tensor:
        return NORMS[self.norm](v)
