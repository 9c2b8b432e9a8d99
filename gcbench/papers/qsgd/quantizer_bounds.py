"""QSGD beside the bounds of its lemmas and theorems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.core.compressor import vnmse
from gcbench.core.methods.entropy_coded import EliasDense, EliasSparse
from gcbench.core.methods.qsgd import QSGD
from gcbench.papers.studies.gradients import code
from gcbench.papers.studies.study import Row, Study
from gcbench.runner.bench.local import DRAWS


@dataclass(frozen=True, kw_only=True)
class QuantizerBounds(Study):
    """Variance, sparsity and code length of QSGD compared with its bounds: Alistarh et al., 2017,
    lemma 3.1 and theorem 3.2.

    For n values in one bucket, on s levels scaled by their 2-norm, the bounds are E|Q(v) - v|^2 /
    |v|^2 <= min(n / s^2, sqrt(n) / s), at most s (s + sqrt n) values that are not zero, and at most
    (3 + 1.5 log2(2 (s^2 + n) / (s (s + sqrt n)))) s (s + sqrt n) + 32 bits, where the theorem's
    o(1) is left out. They are compared with means over `seeds` vectors of equal values, of normal
    values, and of Student's t values with three degrees of freedom, each rounded with its own
    random draws. Bits are those of the actual Elias streams and a scale, without the lengths that
    are sent with them; corollary 3.3 is about the shorter of the two codes. Takes half a minute.
    """

    vectors: Sequence[str] = ("flat", "normal", "student")
    values: Sequence[int] = (256, 1024, 4096, 16384, 65536)  # n
    levels: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 127)  # s
    seeds: int = 100

    def rows(self) -> Iterator[Row]:
        for kind in self.vectors:
            for n in self.values:
                v = torch.stack([_vector(kind, n, seed) for seed in range(self.seeds)])
                for s in self.levels:
                    yield {
                        "row": f"{kind}, n={n}, s={s}",
                        "vector": kind,
                        "n": n,
                        "s": s,
                        **_measure(v, s),
                    }


def _vector(kind: str, n: int, seed: int) -> Tensor:
    return torch.ones(n) if kind == "flat" else DRAWS[kind](n, torch.Generator().manual_seed(seed))


def _measure(v: Tensor, s: int) -> Row:
    n = v.shape[1]
    codec = QSGD(s, "l2", bucket_size=n)
    coded = code(codec, v, (n,))
    variances = vnmse(coded.values, v)
    sparse, dense = (
        _mean(EliasCode(codec).write(coded.codes, (n,))[1].long().sum(1))
        for EliasCode in (EliasSparse, EliasDense)
    )
    most_nonzeros = s * (s + math.sqrt(n))
    most_bits = (3 + 1.5 * math.log2(2 * (s**2 + n) / most_nonzeros)) * most_nonzeros + 32
    return {
        "variance": _mean(variances),
        "variance_standard_error": float(variances.std(correction=0)) / math.sqrt(len(v)),
        "variance_bound": min(n / s**2, math.sqrt(n) / s),
        "nonzeros": _mean((coded.codes != s).sum(1)),
        "nonzeros_bound": most_nonzeros,
        "sparse_code_bits": sparse + 32,
        "sparse_code_bound_bits": most_bits,
        "bits_a_value": (min(sparse, dense) + 32) / n,
    }


def _mean(x: Tensor) -> float:
    return float(x.double().mean())
