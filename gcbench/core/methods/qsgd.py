"""QSGD: random rounding to evenly spaced levels, with one scale per bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gcbench.core.codecs.one_pass import Kinds
from gcbench.core.codecs.scales import NORMS
from gcbench.core.compressor import Properties
from gcbench.core.methods.quantizers import SignedGridQuantizer


@dataclass(frozen=True)
class QSGD(SignedGridQuantizer):
    """Random rounding to evenly spaced levels, with one scale per bucket.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017, section 3.1.

    For a bucket v of d consecutive values of a tensor, with scale ||v||:

        Q_s(v_i) = ||v|| sgn(v_i) xi_i,    xi_i in {0, 1/s, ..., 1} with E[xi_i] = |v_i| / ||v||

    so that E[Q_s(v)] = v and, with the 2-norm, E||Q_s(v) - v||^2 <= min(d / s^2, sqrt(d) / s)
    ||v||^2 (lemma 3.1).

    Sends ceil(log2(2 s + 1)) bits per value (b bits are enough for s = 2^(b-1) - 1 and a sign) and
    one float32 scale per bucket; `code=elias_dense` and `elias_sparse` send the paper's codes
    instead (`entropy_coded.py`).

    Differences from the paper: its experiments use `norm=linf` (the maximum), its theory `l2`.
    Buckets restart at every tensor, as in its experiments, which reshape matrices; with
    `align=true`, none splits a receptive field; the text's buckets of "each gradient as a
    one-dimensional vector" are `bucket_scope=gradient`. What is rounded is v_i / ||v|| + 1, on a
    grid for both signs and in steps of 2^-23. Probabilities are the same, except those below 10^-7.
    """

    norm: Literal["linf", "l2"] = "linf"
    """the scale of a bucket: its largest magnitude, or its 2-norm"""

    @property
    def properties(self) -> Properties:
        # The variance of a bucket relative to |v|^2 is at most d / (4 s^2), with d values halfway
        # between two levels.
        return Properties(unbiased=True, contractive=self.shorter_than(4 * self.levels**2))

    @property
    def kinds(self) -> Kinds:
        return Kinds("norm" if self.norm == "l2" else "largest", "grid", "grid")

    def scale(self, v: Tensor) -> Tensor:
        return NORMS[self.norm](v)
