"""The error of two scales beside that of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gcbench.core.compressor import flatten, vnmse
from gcbench.core.methods.maxnorm import MultiScale
from gcbench.core.wrappers.virtual import aggregate
from gcbench.papers.studies.gradients import OnRealGradients
from gcbench.papers.studies.study import Row
from gcbench.runner.records.gradients import Recorded


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
