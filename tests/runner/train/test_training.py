"""Properties that training must not lose."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from nightly import each, slow_but
from sentence import run
from torch import nn

from gcbench.runner.config.errors import RunFailed
from gcbench.runner.records.clock import Clock
from gcbench.runner.settings.groups import ScheduleSettings, TrainerSettings
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.schedules import FactorSchedule, total_steps

VIRTUAL = "trainer.launcher=virtual"


def metrics(folder: Path) -> str:
    return (folder / "metrics.jsonl").read_text()


def test_same_seed_same_bits_and_another_seed_other_ones(tmp_path: Path) -> None:
    overrides = [VIRTUAL, "min_size=0", "trainer.max_steps=10", "trainer.log_every=5"]
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(tmp_path / name, *overrides, f"seed={seed}")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") != metrics(tmp_path / "c")


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("optimizer", slow_but(["adamw"], ["sgd", "adamw"]))
def test_virtual_and_real_workers_train_alike(tmp_path: Path, optimizer: str) -> None:
    """With an exchange by gather they agree to the bit: same samples, weights and noise."""
    overrides = [
        f"optimizer={optimizer}",
        *"trainer.drift_every=1 min_size=0 trainer.workers=4 trainer.threads=1".split(),
        *"trainer.max_steps=12 trainer.log_every=3".split(),
    ]
    virtual = run(tmp_path / "virtual", *overrides, VIRTUAL)
    hybrid = run(tmp_path / "hybrid", *overrides, "trainer.processes=2")
    assert (virtual["processes"], hybrid["processes"]) == (1, 2)
    assert metrics(tmp_path / "virtual") == metrics(tmp_path / "hybrid")
    assert virtual["bits_sent"] == hybrid["bits_sent"] and virtual["test"] == hybrid["test"]
    assert virtual["seconds"] is None and hybrid["seconds"] is None


def test_one_worker_with_the_whole_batch_equals_four_with_a_quarter(tmp_path: Path) -> None:
    """PowerSGD is linear in the gradient, so only the mean gradient matters.

    The samples of a step are the same.
    """
    overrides = [
        VIRTUAL,
        "compressor=powersgd",
        "trainer.max_steps=8",
        "trainer.log_every=1",
        "trainer.error_every=null",
    ]
    one = run(tmp_path / "one", *overrides, "trainer.workers=1", "trainer.batch_size=64")
    four = run(tmp_path / "four", *overrides, "trainer.workers=4", "trainer.batch_size=16")
    assert one["test"]["loss"] == pytest.approx(four["test"]["loss"], rel=1e-4)


def test_micro_batches_add_up(tmp_path: Path) -> None:
    overrides = [VIRTUAL, "compressor=none", "trainer.max_steps=8"]
    whole = run(tmp_path / "whole", *overrides)
    split = run(tmp_path / "split", *overrides, "trainer.accumulate=4")
    assert whole["test"]["loss"] == pytest.approx(split["test"]["loss"], rel=1e-4)


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="diverged"):
        run(tmp_path, VIRTUAL, "optimizer.lr=1e30", "trainer.epochs=3", "trainer.log_every=5")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "diverged" and "not finite at step" in result["reason"]
    assert 0 < int(result["reason"].split()[-1]) < result["steps"] <= 10


def test_a_result_has_the_facts_of_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, VIRTUAL, "trainer.max_steps=10", "min_size=0")
    for key in (
        "schema_version status reason choices config workers processes launcher device backend "
        "codec_backend threads oversubscribed steps epochs test bits_sent bits_wire seconds "
        "compression_error versions git machine started finished"
    ).split():
        assert key in result, key
    n = 64 * 16 + 16 + 16 * 10 + 10
    sent = result["bits_sent"]
    assert 32 * 5 < result["shannon_bits_per_step"] < sent["per_step"]
    assert sent["dense_per_step"] == 32 * n
    codes = 4 * 8 * math.ceil(n / 8)
    scales = 32 * (2 + 1 + 1 + 1)  # 1024 weights are two buckets of 512
    assert sent["per_step"] == codes + scales
    assert sent["per_worker"] == sent["per_worker_max"] == 10 * sent["per_step"]
    assert sent["per_epoch_mib"] == pytest.approx(sent["per_step"] * 44 / 8 / 2**20)
    assert 0 < result["compression_error"]["relative"] < 1
    assert 0.5 < result["compression_error"]["cosine"] <= 1
    assert result["test"]["best_accuracy"] >= result["test"]["accuracy"]


def test_regression_and_synthetic_data(tmp_path: Path) -> None:
    overrides = [
        *"model=linear dataset=synthetic dataset.task=regression dataset.outputs=1".split(),
        "compressor=none",
    ]
    overrides += [VIRTUAL, "optimizer.lr=0.01"]
    first = run(tmp_path / "first", *overrides, "trainer.max_steps=1")
    last = run(tmp_path / "last", *overrides, "trainer.max_steps=40")
    assert "accuracy" not in last["test"] and last["test"]["loss"] < first["test"]["loss"] / 4


def test_a_convolution_trains_in_both_layouts_and_precisions(tmp_path: Path) -> None:
    overrides = [
        VIRTUAL,
        *"model=resnet20 compressor=none trainer.max_steps=2 trainer.batch_size=8".split(),
        "trainer.log_every=1",
    ]

    def losses(name: str, *more: str) -> list[float]:
        run(tmp_path / name, *overrides, *more)
        lines = [json.loads(line) for line in metrics(tmp_path / name).splitlines()]
        return [line["loss"] for line in lines if line["event"] == "train"]

    plain = losses("plain")
    assert losses("contiguous", "trainer.channels_last=false") == pytest.approx(plain, rel=1e-4)
    assert losses("bf16", "trainer.precision=bf16") == pytest.approx(plain, rel=0.05)


def replica_of_two(model: nn.Module) -> Replica:
    settings = TrainerSettings(workers=2, batch_size=8, epochs=1, precision="fp32")
    replica = Replica(model, "classification", range(2), torch.device("cpu"), settings)
    replica.begin()
    return replica


def backward(replica: Replica, row: int, shift: float) -> torch.Tensor:
    inputs = torch.randn(8, 4) + shift
    batch = inputs, torch.zeros(8, dtype=torch.int64)
    replica.backward(row, batch, (1, 0), Clock(torch.device("cpu")))
    return inputs


def test_running_statistics_follow_worker_0() -> None:
    model = nn.Sequential(nn.Linear(4, 4), norm := nn.BatchNorm1d(4))
    replica = replica_of_two(model)
    inputs, _ = (backward(replica, row, shift) for row, shift in enumerate((0.0, 100.0)))
    assert int(norm.num_batches_tracked) == 1
    with torch.no_grad():
        torch.testing.assert_close(norm.running_mean, 0.1 * model[0](inputs).mean(0))


def test_statistics_of_instance_normalization_follow_worker_0_too() -> None:
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), norm, nn.Flatten())
    replica, means = replica_of_two(model), []
    for row, shift in enumerate((0.0, 100.0)):
        backward(replica, row, shift)
        means.append(norm.running_mean.clone())
    assert means[0].any() and torch.equal(*means)


def test_schedules() -> None:
    def factors(settings: ScheduleSettings, workers: int = 4) -> list[float]:
        schedule = FactorSchedule(settings, workers, steps_per_epoch=10, total_steps=100)
        return [schedule.factor(step) for step in range(100)]

    assert set(factors(ScheduleSettings())) == {1.0}
    steps = factors(ScheduleSettings(kind="steps", milestones=[0.5, 0.8], gamma=0.1))
    assert steps[49] == 1 and steps[50] == pytest.approx(0.1) and steps[80] == pytest.approx(0.01)
    cosine = factors(ScheduleSettings(kind="cosine"))
    assert cosine[0] == 1 and cosine[50] == pytest.approx(0.5) and cosine[99] < 0.001
    triangle = factors(
        ScheduleSettings(kind="linear", warmup_epochs=2, warmup_start=0.2, end_factor=0.1)
    )
    assert triangle[0] == pytest.approx(0.2) and triangle[10] == pytest.approx(0.6)
    assert triangle[20] == 1 and triangle[60] == pytest.approx(0.55)
    assert triangle[99] == pytest.approx(0.1 + 0.9 / 80)
    warm = factors(ScheduleSettings(kind="constant", warmup_epochs=2, scale_by_workers=True))
    assert warm[0] == 1.0 < warm[10] < warm[19] < 4 and warm[20:] == [4.0] * 80
    assert warm[10] == pytest.approx(2.5)
    cold = factors(ScheduleSettings(kind="constant", warmup_epochs=2))
    assert cold[0] == pytest.approx(1 / 21) and cold[20:] == [1.0] * 80
    by_epoch = factors(ScheduleSettings(kind="cosine", interval="epoch"))
    assert by_epoch == [cosine[step - step % 10] for step in range(100)]


@each("start", [0.0, 0.1, 1.0])
@each("scaled", [False, True])
def test_a_warm_up_starts_at_the_fraction_that_was_typed(start: float, scaled: bool) -> None:
    """ORQ, section 5, has "a linear warm-up schedule starting from base learning rate/10"."""
    settings = ScheduleSettings(
        kind="constant", warmup_epochs=2, warmup_start=start, scale_by_workers=scaled
    )
    schedule = FactorSchedule(settings, 4, steps_per_epoch=10, total_steps=100)
    top = 4 if scaled else 1
    assert schedule.factor(0) == pytest.approx(start * top) and schedule.factor(20) == top
    assert schedule.factor(5) == pytest.approx((start + (1 - start) / 4) * top)


def test_whole_gradients_of_a_warm_up_cost_32_bits_a_value_of_the_bound(tmp_path: Path) -> None:
    typed = ["trainer.launcher=virtual", "trainer.max_steps=4", "min_size=0", "compressor=qsgd"]
    typed += ["trainer.error_every=1"]
    coded = run(tmp_path / "coded", *typed)["shannon_bits_per_step"]
    warm = run(tmp_path / "warm", *typed, "dense_steps=2")
    half_whole = (32 * warm["parameters"] + coded) / 2
    assert warm["shannon_bits_per_step"] == pytest.approx(half_whole, rel=0.05)
    assert warm["shannon_bits_per_step"] < warm["bits_sent"]["per_step"]


@pytest.mark.usefixtures("copied_workers")
def test_all_processes_test_with_the_running_statistics_of_worker_0(tmp_path: Path) -> None:
    """The 360 test images make four batches, two per process."""
    typed = ["model=resnet8", "min_size=0", "trainer.workers=2", "trainer.batch_size=8"]
    typed += ["trainer.max_steps=3", "trainer.eval_batch_size=100"]
    virtual = run(tmp_path / "virtual", *typed, VIRTUAL)
    real = run(tmp_path / "real", *typed, "trainer.launcher=local")
    assert real["processes"] == 2 and real["test"] == virtual["test"]


def test_a_run_of_a_part_of_an_epoch_has_the_nearest_whole_number_of_steps() -> None:
    # 0.29 * 100 is 28.999999999999996.
    assert [total_steps(None, epochs, 100) for epochs in (0.29, 0.001, 2)] == [29, 1, 200]
    assert total_steps(5, 2, 100) == 5
