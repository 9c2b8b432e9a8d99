"""ECQ-SGD (Wu et al., ICML 2018): errors with compensation, stability of the residual, and bits."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from method_cases import aggregate, build_method
from torch import Tensor

from gcbench.core.codecs.scales import Norm
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.wrappers import ErrorFeedback

S = 4


class Law(NamedTuple):
    d: int
    alpha: float
    beta: float

    @property
    def gamma(self) -> float:
        """The gamma of lemma 1."""
        return min(self.d / S**2, math.sqrt(self.d) / S)

    @property
    def contraction(self) -> float:
        """The lambda of lemma 2."""
        return self.alpha**2 * self.gamma + (self.beta - self.alpha) ** 2

    def bound(self, t: int) -> float:
        """Return the bound of equation 12 at step t, in units of gamma B."""
        return 1 + self.alpha**2 * self.gamma * (1 - self.contraction**t) / (1 - self.contraction)


def recursion(
    law: Law, steps: int, norm: Norm = "l2", buckets: int = 8
) -> tuple[list[float], list[float]]:
    """Return E|eps|^2 in units of gamma B, and E|h|^2 in units of B, of every step.

    Gradients are Gaussian, so that B = d. The results are means over buckets.
    """
    compressor = ErrorFeedback(build(QSGD(S, norm, bucket_size=law.d)), law.alpha, law.beta)
    state, generator, errors, memories = State(), torch.Generator().manual_seed(0), [], []
    n = law.d * buckets
    for number in range(steps):
        g = torch.randn(1, n, generator=generator)
        h = state.per_worker["w"] if number else torch.zeros(1, n)
        out = aggregate(compressor, {"w": g}, number=number, state=state)
        state = out.state
        errors.append(
            float((out.sent()["w"].double() - g - law.alpha * h.double()).square().sum())
            / n
            / law.gamma
        )
        memories.append(float(state.per_worker["w"].double().square().sum()) / n)
    return errors, memories


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.claim("ecq-10", where="lemma 2, equations 12 and 13")
@pytest.mark.parametrize(
    ("law", "measured", "bound"),
    [
        (Law(256, 0.2, 0.9), 0.66, 1.46),
        (Law(1024, 0.2, 0.9), 1.16, 2.68),
        (Law(4096, 0.01, 1.0), 0.78, 1.09),
        (Law(4096, 0.1, 1.0), 1.95, 6.33),
    ],
)
def test_errors_are_above_qsgds_and_below_the_bound(
    law: Law, measured: float, bound: float
) -> None:
    """The bound holds at every step and tends to (1 + alpha^2 gamma / (1 - lambda)) gamma B.

    QSGD's own error is (sqrt(2 / pi) sqrt(d) / s - 1) B for Gaussian values.
    """
    steps = 300
    errors, _ = recursion(law, steps, buckets=max(4, 8192 // law.d))
    qsgd, _ = recursion(law._replace(alpha=0.0), 20, buckets=max(4, 8192 // law.d))
    assert all(error <= law.bound(t) for t, error in enumerate(errors))
    settled = mean(errors[steps // 2 :])
    assert round(law.bound(10**6), 2) == bound
    assert mean(qsgd) == pytest.approx(
        (math.sqrt(2 / math.pi) * math.sqrt(law.d) / S - 1) / law.gamma, rel=0.05
    )
    assert mean(qsgd) < settled < bound and settled == pytest.approx(measured, rel=0.05)


def rms(memories: list[float], step: int) -> float:
    return math.sqrt(mean(memories[step - 10 : step]))


@pytest.mark.claim("ecq-10", where="lemma 2")
@pytest.mark.parametrize(
    "law",
    [
        Law(256, 0.2, 0.9),
        Law(1024, 0.2, 0.9),
        Law(256, 0.39, 1.0),
        Law(4096, 0.1, 1.0),
        Law(4096, 0.11, 0.95),
    ],
)
def test_the_residual_is_bounded_where_lambda_is_below_one(law: Law) -> None:
    """E|h|^2 <= gamma B / (1 - lambda), at every step."""
    assert law.contraction < 1
    _, memories = recursion(law, 200, buckets=max(2, 4096 // law.d))
    assert max(memories) <= law.gamma / (1 - law.contraction)


@pytest.mark.claim("ecq-10", where="section 6.4")
@pytest.mark.parametrize("law", [Law(4096, 0.2, 1.0), Law(256, 1.0, 1.0), Law(4096, 1.0, 1.0)])
def test_the_residual_diverges_where_lambda_is_far_above_one(law: Law) -> None:
    """This includes plain error feedback around QSGD with the 2-norm, where lambda = gamma."""
    assert law.contraction > 1.2 and (law.alpha < 1 or law.contraction == law.gamma)
    steps = 40 if law.alpha == 1 else 300
    _, memories = recursion(law, steps, buckets=2)
    assert rms(memories, steps) > 3 * rms(memories, steps // 3)
    assert rms(memories, steps) > 150


@pytest.mark.claim("ecq-10", where="section 5.1")
@pytest.mark.parametrize(
    ("law", "norm"),
    [(Law(4096, 0.2, 0.9), "l2"), (Law(4096, 0.2, 1.0), "linf"), (Law(4096, 1.0, 1.0), "linf")],
)
def test_the_condition_is_sufficient_and_not_necessary(law: Law, norm: Norm) -> None:
    """Some residuals stay bounded although lambda > 1; with the maximum as scale, none grew."""
    assert law.contraction > 1
    _, memories = recursion(law, 300, norm, buckets=2)
    assert rms(memories, 300) < 1.1 * rms(memories, 100) < 20


@pytest.mark.claim("ecq-11", where="section 4")
@pytest.mark.parametrize("levels", [1, 2, 4, 7])
def test_a_value_costs_the_bits_of_its_codes_and_a_bucket_a_scale(levels: int) -> None:
    """A code takes ceil(log2(2 s + 1)) bits and a scale 32, at every step."""
    n, state, comm = 1 << 16, State(), Comm(2)
    for number in range(3):
        out = aggregate(
            build_method("ecqsgd", levels=levels, bucket_size=2048),
            {"w": torch.randn(2, n)},
            number=number,
            state=state,
            comm=comm,
        )
        state = out.state
        assert comm.meter.sent_bits[0] == (number + 1) * (
            math.ceil(math.log2(2 * levels + 1)) * n + 32 * n // 2048
        )


@pytest.mark.claim("ecq-11", where="section 4")
@pytest.mark.parametrize("levels", [1, 4])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_entropy_coding_comes_within_5_per_cent_of_shannon(
    levels: int, norm: Norm, real_gradients: dict[int, Tensor]
) -> None:
    """Shannon's bound is sum_k d_k log2(d / d_k) for the codes that were sent.

    The scales and the table of frequencies are not counted. The residual is that of several steps.
    """
    settings = {
        "levels": levels,
        "norm": norm,
        "bucket_size": 4096,
        "alpha": 0.1,
        "beta": 1.0,
        "code": "ans",
    }
    state = State()
    for number, g in enumerate(real_gradients.values()):
        comm = Comm(len(g))
        out = aggregate(
            build_method("ecqsgd", **settings), {"w": g}, number=number, state=state, comm=comm
        )
        state = out.state
        scales, beside = 32 * math.ceil(g.shape[1] / 4096), 16 * (2 * levels + 1) + 3 * 32 + 32
        assert out.shannon_bits is not None
        for bound, sent in zip(out.shannon_bits().tolist(), comm.meter.sent_bits, strict=True):
            assert bound <= sent <= 1.05 * (bound - scales) + scales + beside
