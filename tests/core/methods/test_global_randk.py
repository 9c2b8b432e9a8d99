"""GlobalRandK: all workers send the same few values, and nothing of the others."""

from __future__ import annotations

import pytest
import torch
from method_cases import aggregate, build_method, flat, gradients

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor
from gcbench.core.methods.maxnorm import MaxNorm, MultiScale
from gcbench.core.methods.random_sparse import GlobalRandK

QUANTIZERS: dict[str, Compressor] = {"single scale": MaxNorm(127), "two scales": MultiScale([4, 8])}
each_quantizer = pytest.mark.parametrize("quantizer", QUANTIZERS.values(), ids=QUANTIZERS)


def ones(workers: int) -> dict[str, torch.Tensor]:
    return {"w": torch.ones(workers, 10, 16), "twin": torch.ones(workers, 40)}


@each_quantizer
def test_k_values_of_the_whole_gradient_alike_on_all_workers_and_zero_elsewhere(
    quantizer: Compressor,
) -> None:
    comm = Comm(4)
    out = aggregate(GlobalRandK(quantizer, k=30), ones(4), comm=comm)
    update, sent = flat(out.update)[0], flat(out.sent())
    assert int((update != 0).sum()) == 30
    assert torch.equal(update, sent[0]) and (sent == sent[0]).all()
    assert torch.equal(update[update != 0], torch.ones(30, dtype=torch.float64)), (
        "as they are, not scaled up"
    )
    assert update[:160].any() and update[160:].any()
    alone = Comm(4)
    aggregate(quantizer, {"few": torch.ones(4, 30)}, comm=alone)
    assert comm.meter.sent_bits == alone.meter.sent_bits, "no positions"


@each_quantizer
def test_drawn_values_are_quantized_as_they_are_alone(quantizer: Compressor) -> None:
    """The scale is that of the drawn values only."""
    grads = gradients(range(3), 0)
    out = aggregate(GlobalRandK(quantizer, k=40), grads, number=5)
    drawn = flat(out.sent()).any(0)
    rows = flat(grads)[:, drawn].float()
    finest = rows.abs().max() / (127 if isinstance(quantizer, MaxNorm) else 16)
    assert (flat(out.sent())[:, drawn] - rows).abs().max() <= finest * 1.001
    assert 35 <= int(drawn.sum()) <= 40, "some are rounded to zero"


def test_every_value_is_drawn_equally_often_and_anew_every_step() -> None:
    """E[update] is K / n times the mean, so that the method is biased."""
    method, steps = GlobalRandK(MaxNorm(1), k=30), 1000
    updates = torch.cat(
        [flat(aggregate(method, ones(1), number=number).update) for number in range(steps)]
    )
    p = 30 / 200
    assert (updates.mean(0) - p).abs().max() < 5 * (p * (1 - p) / steps) ** 0.5
    together = (updates.T @ updates / steps).fill_diagonal_(0)
    assert together.sum() == pytest.approx(30 * 29, rel=1e-6)
    assert together.max() < 2.8 * p**2, "pairs too"
    assert not method.properties.unbiased


def test_another_seed_draws_others() -> None:
    method = GlobalRandK(MaxNorm(1), k=30)
    first, second = (flat(aggregate(method, ones(1), seed=seed).update) for seed in (1, 2))
    assert not torch.equal(first, second)


@each_quantizer
@pytest.mark.parametrize("k", [200, 201, 10_000])
def test_a_model_of_fewer_values_sends_all(quantizer: Compressor, k: int) -> None:
    out = aggregate(GlobalRandK(quantizer, k=k), ones(2))
    assert torch.equal(flat(out.update), torch.ones(1, 200, dtype=torch.float64))


def test_the_residual_keeps_what_was_not_drawn() -> None:
    compressor = build_method("global_randk", k=20, bits=8, error_feedback=True, alpha=1, beta=0.9)
    grads = gradients(range(2), 0)
    out = aggregate(compressor, grads)
    sent, residual = flat(out.sent()), flat(out.state.per_worker)
    kept = sent.eq(0).all(0)
    assert torch.equal(residual[:, kept], flat(grads)[:, kept])
    torch.testing.assert_close(sent + residual, flat(grads), rtol=0, atol=1e-6)
