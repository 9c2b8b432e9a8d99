"""The share of zero codes of QSGD, by the scale of a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gcbench.core.compressor import vnmse
from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.core.methods.qsgd import QSGD
from gcbench.papers.studies.gradients import OnRealGradients, code
from gcbench.papers.studies.study import Row
from gcbench.runner.records.gradients import Recorded


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
