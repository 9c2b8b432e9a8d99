"""QSVRG: what is quantized goes to zero, so that quantization leaves no error floor."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from method_cases import build_method
from nightly import each
from sentence import run
from torch import nn

from gcbench.core.comm.collectives import Comm
from gcbench.core.library.exchange import Exchange
from gcbench.runner.control import LocalControl
from gcbench.runner.data import ArrayData, TokenData
from gcbench.runner.data.augment import Augmentation
from gcbench.runner.data.synthetic import synthetic
from gcbench.runner.launch.optimization import make_optimizer
from gcbench.runner.models.linear import Linear
from gcbench.runner.models.lstm import LSTM
from gcbench.runner.records.clock import Clock
from gcbench.runner.records.gradients import GradientFiles, read_gradients
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import OptimizerSettings, ScheduleSettings, TrainerSettings
from gcbench.runner.train.estimators import SGD
from gcbench.runner.train.loop import train_step
from gcbench.runner.train.pipeline import AfterBackward
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.schedules import FactorSchedule
from gcbench.runner.train.scores import loss_of
from gcbench.runner.train.svrg import SVRG, cover_samples, paper_bits

SVRG_STEPS = ["estimator=svrg", "optimizer.momentum=0", "schedule=constant"]
CONVEX = [
    *"model=linear dataset=synthetic dataset.samples=300 dataset.features=8".split(),
    *SVRG_STEPS,
]
DATA = synthetic("regression", samples=207, features=16, outputs=1, noise=0.5)
DATA_OF_WHOLE_STEPS = synthetic("regression", samples=210, features=16, outputs=1, noise=0.5)


def plain_steps(momentum: float = 0.0) -> dict[str, Any]:
    return {"kind": "sgd", "lr": 0.1, "momentum": momentum}


def least_squares(
    estimator: Any,
    compressor: str,
    data: ArrayData = DATA,
    batch_size: int = 5,
    accumulate: int = 1,
) -> tuple[Run, Progress]:
    """Return a run of three virtual workers with plain SGD at a constant rate, and its progress."""
    torch.manual_seed(0)
    comm, device = Comm(3), torch.device("cpu")
    trainer = TrainerSettings(workers=3, batch_size=batch_size, epochs=1, accumulate=accumulate)
    replica = Replica(Linear([16], 1), data.task, comm.local, device, trainer)
    steps_per_epoch = data.steps_per_epoch(3, batch_size)
    knobs = {} if compressor == "none" else {"min_size": 0}
    run = Run(
        data=data,
        replica=replica,
        estimator=estimator,
        pipeline=AfterBackward(),
        exchange=Exchange(build_method(compressor, **knobs), comm, device, in_place=True),
        control=LocalControl(),
        optimizer=make_optimizer(OptimizerSettings.of(plain_steps()), replica.model),
        inner=[],
        schedule=FactorSchedule(ScheduleSettings(), 3, steps_per_epoch, 1000),
        clock=Clock(device),
        recordings=GradientFiles(Path("never"), {}),
        settings=trainer,
        seed=1,
        process=0,
        steps_per_epoch=steps_per_epoch,
        total_steps=1000,
        stop_requested=lambda: False,
    )
    return run, Progress.start(run)


def full_gradient(model: nn.Module, data: ArrayData = DATA) -> torch.Tensor:
    inputs, targets = data.train
    grads = torch.autograd.grad(
        loss_of(data.task, model(inputs), targets), list(model.parameters())
    )
    return torch.cat([g.flatten() for g in grads])


def gradient_norms(estimator: Any, epochs: int) -> list[float]:
    """Return full-gradient norms with 4-bit QSGD at the start and after every 26 steps."""
    run, progress = least_squares(estimator, "qsgd")
    norms = [float(full_gradient(run.replica.model).norm())]
    for _ in range(epochs):
        for _ in range(26):
            train_step(run, progress)
        norms.append(float(full_gradient(run.replica.model).norm()))
    return norms


def test_it_converges_linearly_where_sgd_stays_at_its_noise() -> None:
    """Theorem 3.6: an epoch multiplies f - f* by at most 0.9, so the gradient by sqrt(0.9)."""
    sgd, svrg = gradient_norms(SGD(), 4), gradient_norms(SVRG(epoch_steps=26), 8)
    assert min(sgd) > 0.1
    assert all(after < 0.95 * before for before, after in itertools.pairwise(svrg))
    assert svrg[-1] < 1e-3 * min(sgd), (sgd, svrg)


def test_a_penalty_leaves_no_floor_and_its_gradient_is_told() -> None:
    """With weight decay, added after quantizing, what is quantized would not go to zero."""
    run, progress = least_squares(SVRG(epoch_steps=26, penalty=0.1), "qsgd")
    for _ in range(9 * 26):
        train_step(run, progress)
    norms = SVRG.facts(run.estimator, run, progress, 0.0)["gradient_norms"]
    assert len(norms) == 9 and norms[-1] < 1e-3 * norms[0]
    assert norms[-1] == pytest.approx(
        float((progress.estimator["full"][0] + 0.1 * weights_at_anchor(progress)).norm())
    )


def weights_at_anchor(progress: Progress) -> torch.Tensor:
    return torch.cat([y.flatten() for y in progress.estimator["y"]])


def test_corrected_gradients_average_to_the_full_gradient() -> None:
    """As batches hold every sample once, their mean is grad f(x): the corrections at y cancel."""
    run, progress = least_squares(SVRG(epoch_steps=1000), "none", DATA_OF_WHOLE_STEPS)
    train_step(run, progress)
    with torch.no_grad():
        for p in run.replica.parameters.values():
            p += 0.3
    expected = full_gradient(run.replica.model, DATA_OF_WHOLE_STEPS)
    corrected = []
    for progress.step in range(run.steps_per_epoch, 2 * run.steps_per_epoch):
        run.estimator.gradients(run, progress)
        corrected.append(run.replica.flat.clone())
    torch.testing.assert_close(torch.cat(corrected).mean(0), expected, rtol=1e-5, atol=1e-6)
    assert (torch.cat(corrected) - expected).norm(dim=1).min() > 1e-3, "each by itself has noise"


def test_the_first_gradient_of_an_epoch_is_the_full_one_of_every_worker() -> None:
    """This includes samples that fill no batch, and batches that are cut into micro-batches."""
    for settings in ({}, {"batch_size": 64}, {"batch_size": 6, "accumulate": 3}):
        run, progress = least_squares(SVRG(), "none", **settings)
        expected = full_gradient(run.replica.model)
        run.estimator.gradients(run, progress)
        torch.testing.assert_close(run.replica.flat, expected.expand(3, -1), rtol=1e-5, atol=1e-6)


def test_a_worker_without_a_batch_adds_nothing_to_the_full_gradient() -> None:
    run, progress = least_squares(SVRG(), "none")
    whole = {"batch_size": DATA.train_samples}
    run = replace(run, settings=run.settings.model_copy(update=whole))
    run.replica.flat.fill_(1.0)  # as if left by an earlier step
    full = SVRG()._anchor(run, progress)["full"][0]
    torch.testing.assert_close(full, full_gradient(run.replica.model), rtol=1e-5, atol=1e-6)


@each(("samples", "largest"), [(207, 5), (207, 300), (1437, 32), (1, 1), (64, 64)])
def test_every_sample_is_in_one_batch(samples: int, largest: int) -> None:
    batches = cover_samples(samples, largest)
    held = [i for step, size in batches for i in range(step * size, (step + 1) * size)]
    assert held == list(range(samples))
    assert max(size for _, size in batches) == min(largest, samples)
    assert len(batches) < samples / largest + 10


def test_an_epoch_ends_at_the_average_of_its_iterates() -> None:
    run, progress = least_squares(SVRG(epoch_steps=4), "qsgd")
    iterates = []
    for _ in range(8):
        iterates.append(weights(run))
        train_step(run, progress)
    torch.testing.assert_close(iterates[4], torch.stack(iterates[:4]).mean(0))
    torch.testing.assert_close(weights(run), torch.stack(iterates[4:]).mean(0))


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.replica.parameters.values()])


def test_the_full_gradient_is_charged_and_both_bits_are_reported(tmp_path: Path) -> None:
    overrides = [*CONVEX, "compressor=none", "estimator.epoch_steps=5", "trainer.max_steps=10"]
    result = run(tmp_path, *overrides, "trainer.launcher=virtual")
    n = 8 * 10 + 10
    assert result["parameters"] == n and result["bits_sent"]["per_worker"] == 32 * n * (10 + 2)
    assert result["estimator"]["epoch_steps"] == 5
    assert (
        result["estimator"]["analytic_bits_per_epoch"]
        == paper_bits(n, 5)
        == pytest.approx((32 + 2.8 * 90) * 6 + 32 * 90)
    )
    assert result["estimator"]["metered_bits_per_epoch"] == 32 * n * 6
    longer = run(
        tmp_path / "longer", *overrides, "trainer.launcher=virtual", "trainer.max_steps=12"
    )
    assert longer["estimator"]["metered_bits_per_epoch"] == 32 * n * 6, "whole epochs alone"


@pytest.mark.usefixtures("copied_workers")
def test_virtual_and_real_workers_are_equal_to_the_bit(tmp_path: Path) -> None:
    overrides = [
        *CONVEX,
        "min_size=0",
        "trainer.workers=4",
        "trainer.batch_size=8",
        "trainer.epochs=2",
        "trainer.log_every=3",
    ]
    overrides += ["trainer.record_gradients=[4]"]
    virtual = run(tmp_path / "virtual", *overrides, "trainer.launcher=virtual")
    real = run(tmp_path / "real", *overrides, "trainer.processes=2")
    assert (virtual["processes"], real["processes"]) == (1, 2)
    assert (tmp_path / "virtual" / "metrics.jsonl").read_text() == (
        tmp_path / "real" / "metrics.jsonl"
    ).read_text()
    assert all(virtual[k] == real[k] for k in ("test", "bits_sent", "bits_wire", "estimator"))
    one, other = (
        read_gradients(tmp_path / name / "gradients" / "step-000004.pt")
        for name in ("virtual", "real")
    )
    assert torch.equal(one.gradients, other.gradients) and one.config == other.config


class Norm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4))


@each(
    ("model", "data", "momentum", "says"),
    [
        (Linear([16], 1), DATA, 0.9, "type optimizer.momentum=0"),
        (Norm(), DATA, 0.0, "batch normalization"),
        (nn.Sequential(nn.Dropout(0.1)), DATA, 0.0, "without dropout"),
        (nn.TransformerEncoderLayer(4, 2, 4, dropout=0.1), DATA, 0.0, "without dropout"),
        (LSTM(5, 4, 1, 0.0), DATA, 0.0, "carries hidden state"),
        (
            Linear([16], 1),
            TokenData("text", 5, torch.arange(9), torch.arange(9), 2),
            0.0,
            "not text",
        ),
        (Linear([16], 1), replace(DATA, augment=Augmentation()), 0.0, "type dataset.augment=false"),
    ],
)
def test_it_refuses_what_has_no_full_gradient(
    model: nn.Module, data: Any, momentum: float, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        refuse(SVRG(), model, data, plain_steps(momentum))
    refuse(SGD(), model, data, plain_steps(momentum))


def refuse(estimator: Any, model: nn.Module, data: Any, optimizer: dict[str, Any]) -> None:
    estimator.refuse(model, data, build_method("none"), RunConfig.of({"optimizer": optimizer}))


def test_what_it_takes_and_refuses() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.GroupNorm(1, 3))
    refuse(SVRG(), model, DATA, plain_steps())
    for node in ({"kind": "adamw"}, {"_target_": "torch.optim.RMSprop", "momentum": 0.0}):
        with pytest.raises(ValueError, match="optimizer=.*: estimator=svrg takes plain SGD steps"):
            refuse(SVRG(), model, DATA, node)


def test_full_gradients_cost_32_bits_a_value_of_the_bound(tmp_path: Path) -> None:
    """These four steps have two full gradients."""
    typed = [*CONVEX, "min_size=0", "estimator.epoch_steps=2", "trainer.max_steps=4"]
    result = run(tmp_path, *typed, "trainer.launcher=virtual", "trainer.error_every=1")
    whole = 2 * 32 * result["parameters"] / 4
    assert whole < result["shannon_bits_per_step"] < result["bits_sent"]["per_step"]
