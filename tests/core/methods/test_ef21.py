"""EF21 against a direct implementation of its algorithm, and around other methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from method_cases import aggregate, build_method, flat, gradients
from torch import Tensor

from gcbench.core.compressor import Compressor, State
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.sparseloco import SparseLoCo
from gcbench.core.methods.top_k import TopK
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.wrappers import ErrorFeedback
from gcbench.runner.check.conservation import Quadratic


def keep_largest(x: Tensor, share: float) -> Tensor:
    """Return `x` with zeros except for the `share` of largest magnitude in each row."""
    k = max(1, int(share * x.shape[1]))
    chosen = x.abs().topk(k, dim=1).indices
    return torch.zeros_like(x).scatter(1, chosen, x.gather(1, chosen))


def test_updates_are_those_of_the_algorithm() -> None:
    """h_i <- h_i + C(g_i - h_i), and all apply the mean of h_i."""
    compressor, state = build_method("ef21", fraction=0.1, min_size=0), State()
    estimates = {k: torch.zeros(4, g[0].numel()) for k, g in gradients(range(4), 0).items()}
    for number in range(6):
        grads = gradients(range(4), number)
        out = aggregate(compressor, grads, number=number, state=state)
        for name, g in grads.items():
            estimates[name] += keep_largest(g.reshape(4, -1) - estimates[name], 0.1)
            torch.testing.assert_close(
                out.update[name].flatten(), estimates[name].mean(0), rtol=1e-5, atol=1e-7
            )
            assert torch.equal(out.sent()[name].reshape(4, -1), estimates[name])
        state = out.state


@pytest.mark.parametrize(
    ("choice", "settings"),
    [
        ("powersgd", {"rank": 1}),
        ("powersgd", {"rank": 1, "residual": "aggregated"}),
        ("qsgd", {"bits": 8, "min_size": 0, "bucket_size": 64}),
        ("qsgd", {"bits": 8, "min_size": 0, "bucket_size": 64, "exchange": "sum"}),
        ("sign_norm", {}),
        ("random_k", {"rank": 1}),
    ],
)
def test_what_all_add_up_is_the_mean_of_the_estimates(
    choice: str, settings: dict[str, Any]
) -> None:
    """No worker knows another's estimate, so that all must track the mean, up to rounding."""
    compressor, state = build_method(choice, error_feedback="ef21", **settings), State()
    for number in range(50):
        out = aggregate(compressor, gradients(range(4), number), number=number, state=state)
        state = out.state
    mean = flat(out.sent()).mean(0)
    assert (flat(out.update)[0] - mean).norm() < 1e-5 * mean.norm()


def test_estimates_approach_gradients_that_stand_still_by_one_minus_delta() -> None:
    """Every step shrinks the error of an estimate as Top K's: |C(v) - v|^2 <= (1 - K / n) |v|^2."""
    compressor, state = build(TopK(0.1), error_feedback="ef21"), State()
    grads = {"w": torch.randn(3, 200, generator=torch.Generator().manual_seed(0))}
    errors = [grads["w"].square().sum(1)]
    for number in range(60):
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        errors.append((grads["w"] - out.sent()["w"]).square().sum(1))
        assert (errors[-1] <= (1 - 20 / 200) * errors[-2] + 1e-12).all()
    assert errors[-1].max() < 1e-6


def test_it_comes_to_the_minimum_where_plain_error_feedback_stays_away() -> None:
    """At the common minimum, neither the workers' gradients nor their residuals vanish."""
    assert distance(build(TopK(0.1), error_feedback="ef21")) < 1e-4
    assert distance(build(TopK(0.1), error_feedback=True)) > 3e-3


def distance(compressor: Compressor) -> float:
    """Return the fraction of the distance to the minimizer that 600 steps at rate 0.05 leave."""
    quadratic, state = Quadratic(), State()
    x = {k: torch.zeros(1, *c.shape[1:]) for k, c in quadratic.centers.items()}
    start = quadratic.distance(x)
    for number in range(600):
        out = aggregate(compressor, quadratic.gradients(x), number=number, state=state)
        state = out.state
        x = {k: v - 0.05 * out.update[k] for k, v in x.items()}
    return quadratic.distance(x) / start


def test_an_update_that_is_changed_in_place_changes_no_state() -> None:
    compressor = build(TopK(0.1), error_feedback="ef21")
    out = aggregate(compressor, gradients(range(2), 0))
    before = {k: h.clone() for k, h in out.state.shared.items()}
    for update in out.update.values():
        update.zero_()
    assert all(torch.equal(out.state.shared[k], h) for k, h in before.items())


def test_what_means_nothing_with_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"error_feedback=ef21 alpha=0.2: EF21 has no residual"):
        build(TopK(0.1), error_feedback="ef21", alpha=0.2)
    with pytest.raises(ValueError, match="exchange=ring: sums that are coded again"):
        build(QSGD(7), error_feedback="ef21", exchange="ring")
    with pytest.warns(UserWarning, match="error_feedback=ef21 around a quantizer whose error can"):
        build(QSGD(1, bucket_size=512), error_feedback="ef21")


def test_a_mean_over_senders_is_refused() -> None:
    """The sum of such means would not be the mean of the estimates."""
    with pytest.raises(ValueError, match="combine=senders: EF21 .*; type combine=mean or"):
        build(SparseLoCo(0.1, combine="senders"), error_feedback="ef21")


def test_it_is_another_wrapper_than_error_feedback() -> None:
    layers: Any = build(TopK(0.1), error_feedback="ef21")
    assert not isinstance(layers.inner, ErrorFeedback)
