"""Errors and levels of quantized gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcbench.core.codecs.packing import shannon_bits
from gcbench.core.compressor import vnmse
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.orq import ORQ, BinGradB, BinGradPB, EvenLevels, Halvings, Linear
from gcbench.papers.studies.gradients import OnRealGradients, code
from gcbench.papers.studies.study import Row
from gcbench.runner.records.gradients import Recorded

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
