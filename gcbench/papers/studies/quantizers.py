"""Errors, levels and codes of quantizers: on real gradients, and beside the bounds of theorems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcbench.core.codecs.packing import shannon_bits
from gcbench.core.compressor import flatten
from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.core.methods.bingrad import BinGradB, BinGradPB
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.entropy_coded import EliasDense, EliasSparse
from gcbench.core.methods.even_levels import EvenLevels
from gcbench.core.methods.linear import Linear
from gcbench.core.methods.maxnorm import MultiScale
from gcbench.core.methods.orq import ORQ, Halvings
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.virtual import aggregate
from gcbench.papers.studies.gradients import OnRealGradients, code, vnmse
from gcbench.papers.studies.study import Row, Study
from gcbench.runner.bench.local import DRAWS
from gcbench.runner.records.gradients import Recorded


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


@dataclass(frozen=True, kw_only=True)
class ZeroCodes(OnRealGradients):
    """Share of zero codes by the scale of a bucket: Alistarh et al. (QSGD), 2017, section 4.

    Quantizes the whole gradients of both workers at the first step of every recorded window, with
    all tensors in buckets of `bucket_size` values, scaled by their maximum or their 2-norm.
    `zero_share` is the share among all codes of these steps, and `vnmse` the mean of
    |Q(v) - v|^2 / |v|^2 over them; `*_by_step` has every step. The rounding is drawn once. Takes
    some seconds, and three minutes if no gradients are recorded yet.
    """

    bits: Sequence[int] = (2, 4, 8)
    norms: Sequence[str] = ("linf", "l2")
    bucket_size: int = 512

    def __post_init__(self) -> None:
        """Raise ConfigError for codes of a sign alone, or of more than a byte."""
        super().__post_init__()
        if not all(2 <= bits <= 8 for bits in self.bits):
            raise ConfigError(
                f"bits={format_value(self.bits)}: type numbers of bits from 2 to 8, as in "
                "bits=[2,4,8]"
            )

    def rows(self) -> Iterator[Row]:
        moments = self.moments()
        for norm in self.norms:
            for bits in self.bits:
                levels = 2 ** (bits - 1) - 1
                codec = QSGD(levels, norm, bucket_size=self.bucket_size)  # type: ignore[arg-type]
                shares, errors = zip(
                    *(_zero_share_and_error(codec, moment) for moment in moments), strict=True
                )
                yield {
                    "row": f"{norm}, {bits} bits",
                    "zero_share": sum(shares) / len(shares),
                    "vnmse": sum(errors) / len(errors),
                    "step": [moment.step for moment in moments],
                    "zero_share_by_step": list(shares),
                    "vnmse_by_step": list(errors),
                }


def _zero_share_and_error(codec: QSGD, moment: Recorded) -> tuple[float, float]:
    codes, values = code(codec, moment.gradients, moment.sizes, moment.step)
    zero_share = (codes == codec.levels).float().mean()
    return float(zero_share), float(vnmse(values, moment.gradients).mean())


ANOTHER_DRAW = 10**6  # is added to a step for different noise, which no recorded step has


@dataclass(frozen=True, kw_only=True)
class GradientLevels(OnRealGradients):
    """Error, use of levels and shape of quantized real gradients: Xu et al. (ORQ), 2020, figures 1
    and 2, section 5.1.2.

    Quantizes the whole gradients of both workers at the first step of every recorded window, with
    all tensors in buckets of `bucket_size` values. Columns are for the last of these steps, and
    `by_step` has all of them:

        vnmse              |Q(v) - v|^2 / |v|^2
        squared_bias       |E Q(v) - v|^2 / |v|^2, from the product of the errors of two draws
        code_entropy_bits  entropy of a code, over all buckets
        outer_share        share of the values on the first and the last level; `shares` has all
        wasserstein        distance between the distributions of the values and of FP, in units of
                           FP's mean magnitude
        histogram          counts of values within `clip_sigma` deviations of FP, and how many lie
                           below and above

    QSGD has evenly spaced levels up to the maximum (with 3 levels it is TernGrad). The rounding is
    drawn once, for the bias twice. Takes some seconds, and three minutes if no gradients are
    recorded yet.
    """

    bucket_size: int = 2048
    clip_sigma: float = 2.5
    bins: int = 101

    def rows(self) -> Iterator[Row]:
        moments = self.moments()
        yield self._row("FP", [self._full_precision(moment) for moment in moments])
        for title, codec in self._codecs().items():
            yield self._row(title, [self._quantize(codec, moment) for moment in moments])

    def _codecs(self) -> dict[str, Bucketed]:
        d = self.bucket_size

        def with_levels(s: Halvings) -> dict[str, Bucketed]:
            return {
                f"QSGD-{s}": EvenLevels(level_count=s, bucket_size=d),
                f"Linear-{s}": Linear(level_count=s, bucket_size=d),
                f"ORQ-{s}": ORQ(level_count=s, bucket_size=d),
            }

        return {
            **with_levels(9),
            "BinGrad-pb": BinGradPB(bucket_size=d),
            "BinGrad-b": BinGradB(bucket_size=d),
            **with_levels(5),
            **with_levels(3),
        }

    def _row(self, title: str, measured: list[Row]) -> Row:
        by_step = [{k: v for k, v in row.items() if k != "histogram"} for row in measured]
        return {"row": title, **measured[-1], "by_step": by_step}

    def _full_precision(self, moment: Recorded) -> Row:
        v = moment.gradients
        return {
            "step": moment.step,
            "vnmse": 0.0,
            "wasserstein": 0.0,
            "histogram": self._histogram(v, v),
        }

    def _quantize(self, codec: Bucketed, moment: Recorded) -> Row:
        v = moment.gradients
        codes, values = code(codec, v, moment.sizes, moment.step)
        again = code(codec, v, moment.sizes, moment.step + ANOTHER_DRAW).values
        shares = (
            codes.flatten().bincount(minlength=codec.base)[: codec.base] / codes.numel()
        ).tolist()
        return {
            "step": moment.step,
            "vnmse": float(vnmse(values, v).mean()),
            "squared_bias": _mean_product(values - v, again - v) / _mean_product(v, v),
            "code_entropy_bits": float(shannon_bits(codes.view(1, -1), codec.base)) / codes.numel(),
            "outer_share": shares[0] + shares[-1],
            "wasserstein": _wasserstein(values, v) / float(v.abs().mean()),
            "shares": shares,
            "histogram": self._histogram(values, v),
        }

    def _histogram(self, values: Tensor, v: Tensor) -> dict[str, Any]:
        """Return the counts of `values` over the range of the gradients `v`."""
        end = self.clip_sigma * float(v.std())
        return {
            "low": -end,
            "high": end,
            "counts": torch.histc(values, self.bins, -end, end).long().tolist(),
            "below": int((values < -end).sum()),
            "above": int((values > end).sum()),
        }


def _mean_product(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b).mean())


def _wasserstein(a: Tensor, b: Tensor) -> float:
    """Return the Wasserstein-1 distance between two tensors with the same number of values."""
    return float((a.flatten().sort().values.double() - b.flatten().sort().values).abs().mean())


@dataclass(frozen=True, kw_only=True)
class MultiScaleError(OnRealGradients):
    """Error of two-scale against single-scale quantizers on real gradients: Vineeth S
    (QSGDMaxNorm), 2021, section 5.1.

    The error is |Q(g) - g|^2 / |g|^2 of a worker's whole gradient, as a mean over workers, at the
    first step of every recorded window. It is measured with one scale of 2^b levels, and with two
    scales of 2^b and 2^(b + 4) levels, whose codes take the same number of bits. The norm is the
    maximum, as in the authors' code, or the 2-norm, as in the text. Columns are means over these
    steps, and `*_by_step` has all of them; the largest ratio is that of the step where a second
    scale helps least. The rounding is drawn once. Takes some seconds, and three minutes if no
    gradients are recorded yet.
    """

    bits: Sequence[int] = (8, 4, 2)
    further_bits: int = 4  # extra bits of the larger scale
    norms: Sequence[str] = ("linf", "l2")

    def rows(self) -> Iterator[Row]:
        moments = self.moments()
        for norm in self.norms:
            for bits in self.bits:
                one = MultiScale([bits], norm)  # type: ignore[arg-type]
                two = MultiScale([bits, bits + self.further_bits], norm)  # type: ignore[arg-type]
                single = [_error(one, moment) for moment in moments]
                multi = [_error(two, moment) for moment in moments]
                ratios = [m / s for m, s in zip(multi, single, strict=True)]
                yield {
                    "row": f"{norm}, ({bits}, {bits + self.further_bits}) bits",
                    "single_scale_error": sum(single) / len(single),
                    "multi_scale_error": sum(multi) / len(multi),
                    "ratio": sum(multi) / sum(single),
                    "largest_ratio": max(ratios),
                    "step": [moment.step for moment in moments],
                    "single_scale_error_by_step": single,
                    "multi_scale_error_by_step": multi,
                }


def _error(method: MultiScale, moment: Recorded) -> float:
    grads = moment.tensors()
    sent = aggregate(method, grads, number=moment.step).sent()
    return float(vnmse(flatten(sent), flatten(grads)).mean())
