"""The alphas for which the residual of error-compensated quantization stays bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gcbench.core.codecs.scales import NORMS
from gcbench.core.compressor import State
from gcbench.core.errors import ConfigError
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.virtual import aggregate
from gcbench.core.wrappers.wrappers import ErrorFeedback
from gcbench.papers.studies.study import Row, Study

# A residual grows if the last tenth of its steps exceeds the second tenth by more than this
# factor. Residuals that have settled vary by less.
GROWS = 1.5
TOO_LARGE = 1e15  # a larger residual ends its run, before its squares overflow


class Course(NamedTuple):
    """The residual for one alpha."""

    contraction: float  # lambda
    residual: list[float]  # root mean square by step, until it is too large
    growth: float | None  # None: it became too large

    @property
    def grows(self) -> bool:
        return self.growth is None or self.growth > GROWS


@dataclass(frozen=True, kw_only=True)
class EcqStability(Study):
    """The alpha up to which ECQ-SGD's residual is bounded, compared with the alpha of lambda = 1.

    Wu et al., 2018, lemma 2 and section 6.4.

    Runs the recursion of equations 6 and 7 around QSGD with `levels` levels in buckets of d values.
    Gradients are normal with variance 1, and `values` of them (or one bucket, if that is more) are
    drawn at every step. The theory requires

        lambda = alpha^2 gamma + (beta - alpha)^2 < 1 with gamma = min(d / s^2, sqrt(d) / s)

    which is sufficient, but not necessary. A residual grows if its root mean square over the last
    tenth of the steps is more than 1.5 times that over the second tenth. Uses one seed; means are
    over values and buckets. Takes three to six minutes.
    """

    sizes: Sequence[int] = (256, 1024, 4096)  # d
    norms: Sequence[str] = ("l2", "linf")
    betas: Sequence[float] = (1.0, 0.9)
    alphas: Sequence[float] = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0)
    levels: int = 4  # s
    values: int = 8192
    steps: int = 1500

    def __post_init__(self) -> None:
        """Raise ConfigError for a single step, after which no residual can have grown."""
        if self.steps < 2:
            raise ConfigError(
                f"steps={self.steps}: type a whole number of at least 2, as in steps=1500"
            )

    def rows(self) -> Iterator[Row]:
        for norm in self.norms:
            for beta in self.betas:
                for d in self.sizes:
                    courses = {
                        alpha: self._course(d, norm, alpha, beta) for alpha in sorted(self.alphas)
                    }
                    title = f"{norm}, beta={beta:g}, d={d}"
                    yield {
                        "row": title,
                        "norm": norm,
                        "beta": beta,
                        "d": d,
                        **self._row(d, beta, courses),
                    }

    def _row(self, d: int, beta: float, courses: dict[float, Course]) -> Row:
        bounded = [alpha for alpha, course in courses.items() if not course.grows]
        growing = [alpha for alpha, course in courses.items() if course.grows]
        gamma = self._gamma(d)
        theory = [course for course in courses.values() if course.contraction < 1]
        return {
            "gamma": gamma,
            "alpha_of_lambda_1": _alpha_of_lambda_1(gamma, beta),
            "largest_bounded_alpha": max(bounded, default=None),
            "smallest_growing_alpha": min(growing, default=None),
            "bounded_where_lambda_is_below_1": not any(course.grows for course in theory),
            "alphas": list(courses),
            "lambdas": [course.contraction for course in courses.values()],
            "growths": [course.growth for course in courses.values()],
            "steps": self._steps_to_show(),
            "residual_by_alpha": [
                [_near(course.residual, step) for step in self._steps_to_show()]
                for course in courses.values()
            ],
        }

    def _gamma(self, d: int) -> float:
        return min(d / self.levels**2, math.sqrt(d) / self.levels)

    def _steps_to_show(self) -> list[int]:
        """Return about forty steps, evenly spaced on a logarithmic axis."""
        return sorted({round(self.steps ** (i / 40)) for i in range(41)})

    def _course(self, d: int, norm: str, alpha: float, beta: float) -> Course:
        contraction = alpha**2 * self._gamma(d) + (beta - alpha) ** 2
        residual = self._residual(d, norm, alpha, beta)
        tenth = max(1, self.steps // 10)
        if len(residual) < self.steps:
            return Course(contraction, residual, None)
        early = _rms(residual[tenth : 2 * tenth])
        growth = _rms(residual[-tenth:]) / early if early else 0.0  # 0: the codes had no error
        return Course(contraction, residual, growth)

    def _residual(self, d: int, norm: str, alpha: float, beta: float) -> list[float]:
        assert norm in NORMS
        quantizer = QSGD(self.levels, norm, bucket_size=d)  # type: ignore[arg-type]
        compressor = ErrorFeedback(build(quantizer), alpha, beta)
        state, generator, residual = State(), torch.Generator().manual_seed(0), []
        n = max(1, self.values // d) * d
        for number in range(self.steps):
            gradient = torch.randn(1, n, generator=generator)
            state = aggregate(compressor, {"w": gradient}, number=number, state=state).state
            residual.append(float(state.per_worker["w"].norm()) / math.sqrt(n))
            if residual[-1] > TOO_LARGE:
                break
        return residual


def _alpha_of_lambda_1(gamma: float, beta: float) -> float:
    """Return the larger root of alpha^2 gamma + (beta - alpha)^2 = 1."""
    return (beta + math.sqrt(beta**2 + (gamma + 1) * (1 - beta**2))) / (gamma + 1)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


def _near(residual: Sequence[float], step: int) -> float | None:
    """Return the root mean square over ten steps up to `step`, or None if too few were taken."""
    return _rms(residual[max(0, step - 10) : step]) if step <= len(residual) else None
