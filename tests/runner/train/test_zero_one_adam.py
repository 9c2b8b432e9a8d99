"""0/1 Adam: a variance that is updated less and less often, and exchanges that are skipped."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from inner_cases import N, W, build, shared, take_steps, train_losses
from nightly import each
from sentence import run
from torch import Tensor, nn

from gcbench.runner.train.estimators import batch_of
from gcbench.runner.train.loop import train_step
from gcbench.runner.train.optimizers import FrozenAdam
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.scores import loss_of

ZERO_ONE = ("estimator=zero_one_adam", "optimizer=frozen_adam", "schedule=constant")
SHORT = (*ZERO_ONE, "estimator.double_steps=4", "estimator.max_every=4")
FROZEN = ("optimizer.freeze_steps=10", "optimizer.updates_per_interval=2")
SIGNS = ("compressor=scaled_sign", "error_feedback=true", "min_size=0", "bucket_size=64")
# Steps that update the variance, at intervals of 1, 1, 2, 2 and 4; the last interval would end at
# step 10, from which on the variance is frozen.
DENSE = {0, 1, 2, 4, 6}
EXCHANGED = {3, 5, 7, 8, 9, *(10, 11, 12, 13), *(15, 17), *(21, 25, 29)}


@each("kappa", [1, 2, 3, 16])
def test_the_variance_is_updated_ever_more_seldom(kappa: int) -> None:
    """k_0 = 0, k_{j+1} = k_j + 2^floor(j / kappa)."""
    steps = [0]
    for j in range(200):
        steps.append(steps[-1] + 2 ** (j // kappa))
    steps = [step for step in steps if step < 500]
    optimizer = _optimizer(freeze_steps=500, updates_per_interval=kappa)
    assert [step for step in range(600) if optimizer.updates_variance(step)] == steps


def test_its_code_updates_the_variance_in_other_steps_from_the_third_interval_on() -> None:
    """DeepSpeed counts its call that only makes buffers, and takes multiples of the interval."""
    counted, interval, step, effective = 0, 1, 1, []
    while len(effective) < 34:
        step += 1
        if step % interval == 0:
            effective.append(step - 2)
            counted += 1
            interval *= 2 if counted % 16 == 0 else 1
    optimizer = _optimizer(freeze_steps=500, updates_per_interval=16)
    ours = [step for step in range(500) if optimizer.updates_variance(step)][:34]
    assert effective[:32] == ours[:32] == [*range(16), *range(16, 48, 2)]
    assert (effective[32:], ours[32:]) == ([50, 54], [48, 52])


def test_without_intervals_it_is_updated_until_it_is_frozen() -> None:
    optimizer = _optimizer(freeze_steps=7, updates_per_interval=None)
    assert [step for step in range(20) if optimizer.updates_variance(step)] == list(range(7))


def _optimizer(freeze_steps: int, updates_per_interval: int | None) -> FrozenAdam:
    p = nn.Parameter(torch.zeros(1))
    return FrozenAdam([p], 0.1, [0.9, 0.99], 1e-8, 0.0, freeze_steps, updates_per_interval)


def zero_one_adam(
    run: Run, steps: int, lr: float, decay: float, correction: bool
) -> dict[str, Tensor]:
    """Return the shared parameters after `steps` steps of 0/1 Adam without compression."""
    b1, b2, eps = 0.9, 0.999, 1e-3
    model = deepcopy(run.replica.model)
    models = [deepcopy(model) for _ in range(W)]
    ms = [[torch.zeros_like(p) for p in model.parameters()] for _ in range(W)]
    us = [[torch.zeros_like(p) for p in model.parameters()] for _ in range(W)]
    vs = [torch.zeros_like(p) for p in model.parameters()]
    updates, rates = 0, 0.0
    for step in range(steps):
        grads = []
        for worker, m in enumerate(models):
            inputs, targets = batch_of(run, step, worker)
            loss = loss_of("classification", m(inputs), targets)
            grads.append(torch.autograd.grad(loss, list(m.parameters())))
        if step in DENSE:
            mean = [torch.stack(gs).mean(0) for gs in zip(*grads, strict=True)]
            grads = [tuple(mean)] * W
            vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, mean, strict=True)]
            updates += 1
        rate = lr / (1 - b1 ** (step + 1) if correction else 1)
        rates += rate
        with torch.no_grad():
            unbias = 1 - b2**updates if correction else 1
            roots = [(v / unbias).sqrt() + eps for v in vs]
            roots = [torch.where(v > 0, root, torch.inf) for v, root in zip(vs, roots, strict=True)]
            for worker, m in enumerate(models):
                for i, p in enumerate(m.parameters()):
                    ms[worker][i] = b1 * ms[worker][i] + (1 - b1) * grads[worker][i]
                    us[worker][i] = (1 - lr * decay) * us[worker][i] + rate * ms[worker][i]
                    p.mul_(1 - lr * decay).sub_(rate * ms[worker][i] / roots[i])
            for i, x in enumerate(model.parameters()):
                x.mul_(1 - lr * decay)
                if step in DENSE | EXCHANGED:
                    u = torch.stack([us[worker][i] for worker in range(W)]).mean(0)
                    x.sub_(u / roots[i])
                    for worker, m in enumerate(models):
                        list(m.parameters())[i].copy_(x)
                        ms[worker][i] = u / rates if step in EXCHANGED else ms[worker][i]
                        us[worker][i] = torch.zeros_like(u)
        if step in DENSE | EXCHANGED:
            rates = 0.0
    return {k: p.detach() for k, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("steps", "correction"), [(3, False), (10, False), (18, False), (30, False), (30, True)]
)
def test_it_is_the_papers_algorithm(tmp_path: Path, steps: int, correction: bool) -> None:
    """The paper corrects no bias of the moments, which is the default."""
    rates = ["optimizer.lr=0.002", "optimizer.weight_decay=2", "optimizer.eps=0.001"]
    rates += ["optimizer.bias_correction=true"] if correction else []
    built = build(tmp_path, "compressor=none", *SHORT, *FROZEN, *rates)
    expected = zero_one_adam(built[0], steps, 0.002, 2, correction)
    before = shared(built[0])
    take_steps(built, steps)
    for name, value in shared(built[0]).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=2e-5)
        assert (value - before[name]).abs().max() > 1e-3


def test_steps_cost_what_they_exchange(tmp_path: Path) -> None:
    """A step sends its gradient in fp32, or one bit per value and scales, or nothing."""
    run, progress = build(tmp_path, *SIGNS, *SHORT, *FROZEN)
    bits: dict[int, float] = {}
    for step in range(30):
        before = run.comm.meter.sent_bits[0]
        train_step(run, progress)
        bits[step] = run.comm.meter.sent_bits[0] - before
    coded = {bits[step] for step in EXCHANGED}
    assert {step for step, sent in bits.items() if sent == 32 * N} == DENSE
    assert {step for step, sent in bits.items() if 0 < sent < 32 * N} == EXCHANGED
    assert len(coded) == 1 and N < coded.pop() < 2 * N
    facts = run.estimator.facts(run, progress, 0.0)
    assert facts == {"max_every": 4, "exchanges": len(EXCHANGED), "variance_updates": len(DENSE)}


def test_what_is_not_sent_is_sent_later(tmp_path: Path) -> None:
    """With frozen v, (sqrt(v) + eps) times all updates, plus the residual, is the sum of all u."""
    run, progress = build(tmp_path, *SIGNS, *SHORT, *FROZEN)
    take_steps((run, progress), 10)
    start, roots, sums = shared(run), _roots(run), _residuals(progress)
    for _ in range(18):
        if train_step(run, progress) is not None:
            for name in sums:
                sums[name] = sums[name] + run.replica.grads[name].mean(0)
    for name, x in shared(run).items():
        left = _residuals(progress)[name]
        moved = torch.where(roots[name] < torch.inf, roots[name] * (start[name] - x), 0)
        known = roots[name] < torch.inf
        torch.testing.assert_close((moved + left)[known], sums[name][known], rtol=1e-3, atol=1e-6)
        assert left.abs().max() > 0
    assert all(torch.equal(root, roots[name]) for name, root in _roots(run).items())


def _roots(run: Run) -> dict[str, Tensor]:
    """Return sqrt(v') + eps by parameter name, with the bias-corrected v'."""
    optimizer = run.inner[0].optimizer
    assert isinstance(optimizer, FrozenAdam)
    roots = optimizer.roots()
    return {name: roots[p] for name, p in run.inner[0].parameters.items()}


def _residuals(progress: Progress) -> dict[str, Tensor]:
    """Return the mean of the workers' error-feedback residuals."""
    (residuals,) = [layer.per_worker for layer in progress.kept.state.layers() if layer.per_worker]
    return {name: residual.mean(0) for name, residual in residuals.items()}


def test_after_an_exchange_all_workers_are_one(tmp_path: Path) -> None:
    """All have the shared parameters and the same momentum then, and only then."""
    built = build(tmp_path, *SIGNS, *SHORT, *FROZEN, "optimizer.weight_decay=0")
    run, progress = built
    for step in range(30):
        train_step(run, progress)
        optimizers = [inner.optimizer for inner in run.inner]
        momenta = [[s["exp_avg"] for s in optimizer.state.values()] for optimizer in optimizers]
        for inner, of_worker in zip(run.inner, momenta, strict=True):
            equal = all(
                torch.equal(p, run.replica.parameters[name]) for name, p in inner.parameters.items()
            )
            same = all(torch.equal(a, b) for a, b in zip(of_worker, momenta[0], strict=True))
            assert equal == (step in DENSE | EXCHANGED)
            assert same == (equal or inner is run.inner[0])


def test_an_exchange_at_a_rate_of_0_keeps_the_momenta(tmp_path: Path) -> None:
    """There, u and the sum of g_t are 0, and their ratio would not be a number."""
    at_rest = ("warmup_epochs=1", "warmup_start=0", "interval=epoch")
    built = build(tmp_path, *SIGNS, *SHORT, *FROZEN, *(f"schedule.{key}" for key in at_rest))
    before = shared(built[0])
    take_steps(built, 4)  # of which the last one exchanges
    momenta = [s["exp_avg"] for s in built[0].inner[0].optimizer.state.values()]
    assert all(m.isfinite().all() and m.any() for m in momenta)
    assert all(torch.equal(value, before[name]) for name, value in shared(built[0]).items())


@pytest.mark.parametrize("compressor", ["none", "scaled_sign", "qsgd", "powersgd"])
def test_it_learns_through_any_compressor(tmp_path: Path, compressor: str) -> None:
    residual = () if compressor in ("none", "qsgd") else ("error_feedback=true",)
    overrides = (
        f"compressor={compressor}",
        *residual,
        *SHORT,
        *FROZEN,
        "optimizer.eps=0.001",
        "optimizer.lr=0.01",
    )
    built = build(tmp_path, *overrides, *(["min_size=0"] if compressor != "none" else []))
    first = train_losses(built, 4)
    take_steps(built, 30)
    assert train_losses(built, 4) < 0.8 * first


def test_the_first_exchange_after_every_so_many_steps_is_sampled(tmp_path: Path) -> None:
    length = ("trainer.max_steps=30", "trainer.workers=2", "trainer.error_every=10")
    result = run(tmp_path, *SIGNS, *SHORT, *FROZEN, *length, "trainer.launcher=virtual")
    tens = {step // 10 for step in EXCHANGED if step % 10 < 4}  # max_every=4
    assert result["compression_error"]["samples"] == len(tens) < len(EXCHANGED)


@pytest.mark.usefixtures("copied_workers")
def test_virtual_and_real_workers_are_equal_to_the_bit(tmp_path: Path) -> None:
    """This holds for two workers, as a sum of two values is the same in any order."""
    length = ("trainer.max_steps=30", "trainer.workers=2", "trainer.error_every=4")
    where = {"virtual": (), "local": ("trainer.drift_every=1",)}
    results = {
        launcher: run(
            tmp_path / launcher,
            *(*SIGNS, *SHORT, *FROZEN, *length, f"trainer.launcher={launcher}", *overrides),
        )
        for launcher, overrides in where.items()
    }
    assert [result["processes"] for result in results.values()] == [1, 2]
    one, other = results.values()
    for key in ("test", "bits_sent", "bits_wire", "estimator", "compression_error"):
        assert one[key] == other[key]
    virtual, local = (torch.load(tmp_path / k / "weights.pt", weights_only=True) for k in where)
    assert all(torch.equal(weights, local[name]) for name, weights in virtual.items())


def test_between_exchanges_each_group_decays_at_its_own_rate(tmp_path: Path) -> None:
    groups = "optimizer.groups=[{match:bias,lr_scale:3,weight_decay:2}]"
    rates = ("optimizer.lr=0.01", "optimizer.weight_decay=1", groups)
    built = build(tmp_path, "compressor=none", *SHORT, *FROZEN, *rates)
    take_steps(built, 14)
    before = shared(built[0])
    assert train_step(*built) is None, "step 14 exchanges nothing"
    for name, x in shared(built[0]).items():
        decay = 0.06 if "bias" in name else 0.01
        torch.testing.assert_close(x, (1 - decay) * before[name])


def test_each_group_has_steps_of_its_own_size() -> None:
    p, q = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    groups = [{"params": [p]}, {"params": [q], "lr": 0.3, "betas": (0.5, 0.9)}]
    optimizer = FrozenAdam(
        groups, 0.1, [0.9, 0.99], 1e-8, 0.0, freeze_steps=9, bias_correction=True
    )
    for number in (1, 2):
        p.grad, q.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
        sizes = [0.1 / (1 - 0.9**number), 0.3 / (1 - 0.5**number)]
        assert optimizer.step_sizes() == pytest.approx(sizes)
