"""A training step: the update that it applies, its cost, and what the log says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inner_cases import virtual_run
from passes import PassCounter
from sentence import run

from gcbench.core.compressor import Goal, flatten
from gcbench.runner.records.files import RunFiles
from gcbench.runner.train.loop import sample, train_step
from gcbench.runner.train.run import Progress, Run

SGD = ("optimizer.kind=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0")


def test_a_step_applies_its_own_learning_rate(tmp_path: Path) -> None:
    """Steps count from 0: x_{t+1} = x_t - lr_t update_t."""
    cosine = ("optimizer.lr=0.5", "schedule=cosine", "schedule.warmup_epochs=0")
    linear = ("model=linear", "compressor=none", "trainer.max_steps=4", "trainer.workers=4")
    run, progress = virtual_run(tmp_path, *SGD, *linear, *cosine)
    for rate in (0.5, 0.5 * 0.8535534, 0.25, 0.5 * 0.1464466):  # a half cosine over 4 steps
        before = {k: p.detach().clone() for k, p in run.replica.parameters.items()}
        exchanged = train_step(run, progress)
        assert exchanged is not None
        for k, p in run.replica.parameters.items():
            torch.testing.assert_close(p.detach(), before[k] - rate * exchanged.update[k][0])


def test_the_loss_of_the_log_is_the_mean_of_all_workers_and_steps(tmp_path: Path) -> None:
    """It depends neither on how many workers share the batch nor on how often lines are logged."""

    def losses(name: str, *more: str) -> list[float]:
        typed = "model=linear compressor=none trainer.launcher=virtual trainer.max_steps=4"
        run(tmp_path / name, *typed.split(), *more)
        lines = RunFiles(tmp_path / name).read_metrics()
        return [line["loss"] for line in lines if line["event"] == "train"]

    every = "trainer.log_every=1"
    one = losses("one", "trainer.workers=1", "trainer.batch_size=64", every)
    assert 0.5 < one[0] < 6, "about ln 10 for ten classes before anything was learned"
    four = losses("four", "trainer.workers=4", "trainer.batch_size=16", every)
    assert four == pytest.approx(one, rel=1e-4)
    whole = losses("whole", "trainer.workers=4", "trainer.batch_size=16", "trainer.log_every=4")
    assert whole == pytest.approx([sum(four) / 4], rel=1e-6)


def begin(tmp_path: Path, *overrides: str) -> tuple[Run, Progress]:
    """Return a run of virtual workers after its first step."""
    run, progress = virtual_run(tmp_path, *overrides)
    train_step(run, progress)
    return run, progress


def count_passes(run: Run, progress: Progress) -> PassCounter:
    with PassCounter(lambda: run.clock.name) as passes:
        train_step(run, progress)
    return passes


@pytest.mark.parametrize("model", ["resnet8", "mlp"])
def test_the_update_moves_no_more_than_the_optimizer_alone(tmp_path: Path, model: str) -> None:
    """Apart from SGD with Nesterov momentum, the update only zeroes the workers' gradients."""
    overrides = (
        f"model={model}",
        "compressor=none",
        "optimizer.nesterov=true",
        "trainer.workers=2",
    )
    run, progress = begin(tmp_path, *overrides, "trainer.error_every=null")
    group = run.optimizer.param_groups[0]
    chosen = {key: group[key] for key in ("lr", "momentum", "nesterov", "weight_decay")}
    alone = torch.optim.SGD(run.replica.model.parameters(), **chosen)
    for p in run.replica.parameters.values():
        p.grad = torch.ones_like(p)
    alone.step()  # creates the momentum buffers
    with PassCounter() as of_optimizer:
        alone.step()
    passes = count_passes(run, progress)
    zeroed = run.replica.flat.numel()
    assert passes.total("update") <= 1.01 * (of_optimizer.total("") + zeroed)
    names = {name for phase, name in passes.values if phase == "update"}
    assert not names & {"aten::copy_", "aten::_to_copy", "aten::clone"}


@pytest.mark.parametrize("model", ["resnet8", "mlp"])
def test_a_virtual_worker_costs_its_passes_and_three_over_its_gradient(
    tmp_path: Path, model: str
) -> None:
    """The gradient is zeroed, added to its row, and searched for values that are not finite."""
    counts = []
    for workers in (2, 4):
        run, progress = begin(
            tmp_path, f"model={model}", "compressor=none", f"trainer.workers={workers}"
        )
        passes = count_passes(run, progress)
        counts.append(passes.total("data", "forward", "backward", "update"))
    for p in run.replica.parameters.values():
        p.grad = None
    size = run.settings.batch_size
    with PassCounter() as alone:
        x, y = run.data.batch(epoch=0, step=0, worker=0, workers=4, batch_size=size, seed=0)
        torch.nn.functional.cross_entropy(run.replica._outputs(x, 0), y).backward()
    of_worker = (counts[1] - counts[0]) / 2
    assert of_worker <= 1.02 * (alone.total("") + 3 * run.replica.numel)


def test_fragments_are_messages_of_their_own(tmp_path: Path) -> None:
    """Codecs are compiled for the tensors that are exchanged together."""
    fragments = ("estimator=local_steps", "estimator.every=2", "estimator.fragments=2")
    run, _ = begin(tmp_path, "model=mlp", "compressor=none", "trainer.workers=2", *fragments)
    first, second = run.pipeline.messages(run)
    assert first and second and [*first, *second] == list(run.replica.grads)


def test_the_error_is_relative_to_the_mean_gradient(tmp_path: Path) -> None:
    run, progress = begin(tmp_path, "model=mlp", "bits=2", "min_size=0", "trainer.workers=3")
    exchanged = train_step(run, progress)
    assert exchanged is not None and exchanged.shannon_bits is not None
    mean = run.replica.flat.double().mean(0)
    update = torch.cat([u.flatten() for u in exchanged.update.values()]).double()
    assert not 0.8 < update.norm() / mean.norm() < 1.2
    assert sample(run, exchanged) == pytest.approx(
        {
            "relative": float((update - mean).norm() / mean.norm()),
            "cosine": float(torch.cosine_similarity(update, mean, dim=0)),
            "shannon_bits": float(exchanged.shannon_bits().mean()),
        },
        rel=1e-5,
    )
    nothing = {name: torch.zeros_like(u) for name, u in exchanged.update.items()}
    grads, update = exchanged.goal()
    assert update is exchanged.update
    alone = exchanged._replace(shannon_bits=None)
    assert sample(run, alone._replace(goal=lambda: Goal(grads, nothing))) == {"relative": 1}
    zero = {name: torch.zeros_like(g) for name, g in grads.items()}
    assert sample(run, alone._replace(goal=lambda: Goal(zero, update))) == {}


MOMENTUM = ("optimizer=sgd", "optimizer.momentum=0.9", "+compressor.momentum=0.9")
ZERO_ONE = ("estimator=zero_one_adam", "optimizer=frozen_adam", "optimizer.freeze_steps=2")


def test_without_compression_there_is_no_error_whatever_is_coded(tmp_path: Path) -> None:
    """The error is that of what is coded: clipped gradients, momenta, or sums of local steps."""
    small = ("model=mlp", "model.widths=[16]")
    for overrides in (
        (*small, "clip_norm=0.1"),
        (*small, "clip_norm=0.1", "+compressor.clip_sigma=1.0", *MOMENTUM),
        (
            *small,
            "clip_norm=0.1",
            "+compressor.error_feedback=true",
            "trainer.double_buffering=true",
        ),
        (*small, "estimator=local_steps", "estimator.every=2", "estimator.clip_norm=0.1"),
        ("estimator=svrg", "model=linear", "clip_norm=0.1", "optimizer.momentum=0"),
        (*small, *ZERO_ONE, "estimator.max_every=2", "estimator.double_steps=2"),
    ):
        run, progress = begin(tmp_path, "compressor=none", "trainer.workers=3", *overrides)
        exchanges = (train_step(run, progress) for _ in range(6))
        samples = [sample(run, e) for e in exchanges if e is not None]
        assert len(samples) >= 2, overrides
        for s in samples:
            assert s["relative"] < 1e-6 and s["cosine"] == pytest.approx(1), overrides


def test_an_update_without_a_scale_has_a_cosine_and_no_error(tmp_path: Path) -> None:
    """Signum codes momenta, to which the cosine is."""
    for choice in ("signum", "demo", "dion"):
        run, progress = begin(tmp_path, "model=mlp", f"compressor={choice}", "trainer.workers=3")
        exchanged = train_step(run, progress)
        assert exchanged is not None
        assert sample(run, exchanged).keys() == {"cosine"}
        wanted = flatten(exchanged.goal().wanted).double().mean(0)
        momenta = choice == "signum"
        mean = (
            flatten(progress.kept.state.per_worker if momenta else run.replica.grads)
            .double()
            .mean(0)
        )
        torch.testing.assert_close(wanted, mean)
