"""A run that is stopped and resumed has the same weights, bits and metrics as one that is not."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inner_cases import build, take_steps
from nightly import slow_but
from sentence import run, untimed_metrics
from small_cifar10 import write_cifar10
from torch.utils._pytree import tree_leaves

from gcbench.core.errors import ConfigError
from gcbench.core.library.exchange import ExchangeResult
from gcbench.core.library.states import StateError
from gcbench.core.methods.dense import Dense
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.records import clock
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.loggers import NoLogger
from gcbench.runner.train import loop
from gcbench.runner.train.checkpoints import last_step
from gcbench.runner.train.loop import train_step
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.snapshot import restore, shared_content, worker_content

METHODS = {
    "qsgd": ["compressor=qsgd", "min_size=0", "error_feedback=true", "alpha=0.2", "beta=0.9"],
    "powersgd": ["compressor=powersgd", "rank=2"],
    # Ranks are chosen in steps 1 and 11, before and after the checkpoint of step 10.
    "adaptive": ["compressor=powersgd", "rank=2", "adapt_every=10"],
    "none": ["compressor=none"],
    "ef21": ["compressor=ef21", "min_size=0"],
    "ef21_muon": [
        *("compressor=ef21_muon", "optimizer=muon", "optimizer.momentum=0"),
        "optimizer.nesterov=false",
    ],
    "loco": ["compressor=loco", "reset_steps=8"],
    "onebit_adam": "compressor=onebit_adam optimizer=frozen_adam optimizer.freeze_steps=8".split(),
    "dion": ["compressor=dion", "rank=4", "optimizer=dion"],
    # Exchanges come after 5, 6, 8 and 12 + 4 k steps: the checkpoint of step 10 is between two.
    "zero_one_adam": [
        *"compressor=scaled_sign error_feedback=true min_size=0 estimator=zero_one_adam".split(),
        *"estimator.double_steps=2 estimator.max_every=4 optimizer=frozen_adam".split(),
        *"optimizer.freeze_steps=4 optimizer.updates_per_interval=2".split(),
    ],
}
ANY_CLASS = [
    *"optimizer._target_=own_optimizers.Decaying optimizer.lr=0.05".split(),
    *"schedule._target_=torch.optim.lr_scheduler.OneCycleLR schedule.max_lr=0.1".split(),
]
# One half of the tensors is exchanged after 3 + 7 k steps, the other after 7 k steps.
IN_HALVES = ["estimator=local_steps", "estimator.every=7", "estimator.fragments=2"]
STREAMING = ["estimator.delay=2", "estimator.mixing=0.25", "estimator.pattern=strided"]
PLAIN_SVRG = ["estimator=svrg", "estimator.epoch_steps=7", "optimizer.momentum=0"]
METHODS |= {
    "svrg": [*METHODS["qsgd"], *PLAIN_SVRG],
    "adamw": [*METHODS["qsgd"], "optimizer=adamw", "schedule.interval=epoch"],
    "local_steps": [*METHODS["qsgd"], *IN_HALVES, *ANY_CLASS],
    # The checkpoint of step 10 comes while an exchange is under way.
    "muloco": [*METHODS["qsgd"], *IN_HALVES, *STREAMING, "optimizer=muon"],
    "buffers": [*METHODS["qsgd"], "model._target_=own_models.Centered"],
    "any_class": [*METHODS["powersgd"][:1], *ANY_CLASS],
}
LENGTH = [
    *"trainer.workers=4 trainer.threads=1 trainer.log_every=7 trainer.error_every=4".split(),
    "trainer.checkpoint_keep=9",
]


def final_weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    path = folder / "checkpoints" / f"step-{step:08d}" / "shared.pt"
    weights: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return weights


def copy_and_cut_back(whole: Path, step: int) -> Path:
    """Return a copy of the run's directory, as if it had been killed after the checkpoint."""
    folder = whole.with_name("cut")
    shutil.copytree(whole, folder)
    cut_back(folder, step)
    return folder


def cut_back(folder: Path, step: int) -> None:
    """Leave the directory as if the run had been killed after the checkpoint of `step`."""
    (folder / "result.json").unlink()
    for path in (folder / "checkpoints").iterdir():
        if path.name > f"step-{step:08d}":
            shutil.rmtree(path)


def same(
    one: Path, other: Path, step: int, result: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert untimed_metrics(one) == untimed_metrics(other)
    a, b = final_weights(one, step), final_weights(other, step)
    assert all(torch.equal(a[k], b[k]) for k in a)
    for key in ("test", "bits_sent", "bits_wire", "compression_error", "steps"):
        assert result[key] == expected[key]


@pytest.mark.parametrize(
    "method", slow_but(["qsgd", "powersgd", "onebit_adam", "buffers"], [*METHODS])
)
def test_killed_and_resumed_equals_not_killed(tmp_path: Path, method: str) -> None:
    overrides = [*METHODS[method], *LENGTH, "trainer.launcher=virtual"]
    overrides += ["trainer.max_steps=30", "trainer.checkpoint_steps=5"]
    whole = run(tmp_path / "whole", *overrides)
    cut = copy_and_cut_back(tmp_path / "whole", 10)
    kept = cut / "checkpoints" / "step-00000005" / "manifest.json"
    written = kept.stat().st_mtime_ns
    resumed = run(cut, *overrides)
    same(tmp_path / "whole", cut, 25, resumed, whole)
    assert kept.stat().st_mtime_ns == written  # a run that starts anew would write it again


def test_a_resumed_run_goes_on_counting_seconds(tmp_path: Path) -> None:
    """Its first three steps are not timed, as in any process."""
    overrides = ["trainer.workers=1", "trainer.log_every=3", "trainer.max_steps=12"]

    def seconds() -> dict[int, float]:
        lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line["seconds"] for line in lines if line["event"] == "train"}

    run(tmp_path, *overrides, "trainer.checkpoint_steps=6", "trainer.keep_weights=false")
    before = seconds()
    (tmp_path / "result.json").unlink()
    resumed = run(tmp_path, *overrides, "trainer.checkpoint_steps=6", "trainer.keep_weights=false")
    after = seconds()
    assert resumed["resumed_step"] == 6
    assert after[9] == after[6] == before[6] > 0
    assert after[12] > after[9]


def test_phases_are_timed_on_one_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mean over steps on two links would be the time of neither, and the result names one."""
    overrides = ["trainer.workers=1", "trainer.max_steps=12", "trainer.checkpoint_steps=6"]
    for link, seconds in (("slow", 5.0), ("fast", 1.0)):
        monkeypatch.setenv("GCBENCH_LINK", link)
        laps = [clock.Lap("forward", seconds)]
        monkeypatch.setattr(clock.Clock, "_laps", lambda *_, laps=laps: laps)
        result = run(tmp_path, *overrides)
        if link == "slow":
            cut_back(tmp_path, 6)
    assert result["network"]["link"] == "fast" and result["seconds"]["step"]["mean"] == 1
    assert "the seconds of a step count from step 6 on, as link changed" in caplog.text
    timed = 6 - clock.WARMUP_STEPS  # of each part
    assert RunFiles(tmp_path).read_metrics()[-1]["seconds"] == timed * (5 + 1)


@pytest.mark.capability
@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize(
    "method", slow_but(["local_steps", "buffers"], ["svrg", "local_steps", "buffers"])
)
def test_virtual_workers_continue_as_real_ones(tmp_path: Path, method: str) -> None:
    """Four virtual workers of one process become four processes over gloo.

    Every worker's state is in its own file, and gathers add in worker order.
    """
    overrides = [
        *METHODS[method],
        *LENGTH,
        *"trainer.max_steps=12 trainer.checkpoint_steps=4 trainer.keep_weights=false".split(),
    ]
    whole = run(tmp_path / "whole", *overrides, "trainer.launcher=virtual")
    cut = copy_and_cut_back(tmp_path / "whole", 4)
    resumed = run(cut, *overrides, "trainer.launcher=local")
    assert resumed["processes"] == 4
    same(tmp_path / "whole", cut, 8, resumed, whole)


@pytest.mark.filterwarnings("ignore:.*not the official ones")
@pytest.mark.usefixtures("copied_workers")
def test_a_recipe_with_a_stem_from_data_continues_in_real_workers(tmp_path: Path) -> None:
    """Crops, flips, batch normalization and the frozen stem are the same in any process."""
    images = np.random.default_rng(0).integers(256, size=(16, 3072), dtype=np.uint8)
    write_cifar10(tmp_path, images, [k % 10 for k in range(16)])
    overrides = [
        *METHODS["qsgd"],
        *LENGTH,
        *"model=airnet model.widths=[4,4,4] dataset=cifar10 dataset.crop_fill=reflect".split(),
        *"dataset.flip=alternating trainer.precision=bf16 trainer.label_smoothing=0.2".split(),
        *"trainer.batch_size=8 trainer.epochs=3 trainer.workers=2".split(),
        *"trainer.checkpoint_steps=4 trainer.keep_weights=false schedule=linear".split(),
        "optimizer.groups=[{match:norm,lr_scale:64}]",
        f"data.root={tmp_path}",
    ]
    whole = run(tmp_path / "whole", *overrides, "trainer.launcher=virtual")
    cut = copy_and_cut_back(tmp_path / "whole", 4)
    resumed = run(cut, *overrides, "trainer.launcher=local")
    assert resumed["processes"] == 2 and resumed["steps"] == 15
    same(tmp_path / "whole", cut, 12, resumed, whole)


def test_text_resumes_with_its_hidden_state(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    words = " ".join(f"w{(i * i) % 23}" for i in range(3000))
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text(words + "\n")
    sentence = [
        *"model=lstm model.width=8 dataset=wikitext2 dataset.bptt=5 trainer.batch_size=4".split(),
        *"trainer.max_steps=20 trainer.checkpoint_steps=5 trainer.checkpoint_keep=9".split(),
        *"compressor=powersgd clip_norm=0.4 trainer.launcher=virtual".split(),
        f"data.root={tmp_path / 'data'}",
    ]
    whole = run(tmp_path / "whole", *sentence)
    cut = copy_and_cut_back(tmp_path / "whole", 10)
    same(tmp_path / "whole", cut, 15, run(cut, *sentence), whole)
    assert whole["test"]["perplexity"] > 1


def test_only_the_last_k_are_kept_and_each_names_its_files(tmp_path: Path) -> None:
    keep = "trainer.checkpoint_steps=3 trainer.checkpoint_keep=2 trainer.keep_weights=false"
    run(tmp_path, "trainer.launcher=virtual", "trainer.max_steps=12", *keep.split())
    folders = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert folders == ["step-00000006", "step-00000009"]
    manifest = json.loads((tmp_path / "checkpoints" / folders[-1] / "manifest.json").read_text())
    assert set(manifest["sha256"]) == {"shared.pt", "worker-00000.pt", "worker-00001.pt"}


# Checkpoints of steps 4 and 8.
TWO = (
    *"trainer.launcher=virtual trainer.max_steps=12 trainer.checkpoint_steps=4".split(),
    "trainer.keep_weights=false",
)


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path, *TWO)
    (tmp_path / "result.json").unlink()
    path = tmp_path / "checkpoints" / "step-00000008" / "worker-00001.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    says = "worker-00001.pt is missing or damaged .*; remove .*8 to continue from step-00000004"
    with pytest.raises(ConfigError, match=says):
        run(tmp_path, *TWO)


@pytest.mark.parametrize("name", slow_but(["shared.pt"], ["shared.pt", "manifest.json"]))
def test_a_truncated_checkpoint_makes_room_for_the_one_before(tmp_path: Path, name: str) -> None:
    whole = run(tmp_path, *TWO)
    (tmp_path / "result.json").unlink()
    path = tmp_path / "checkpoints" / "step-00000008" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=f"{name} is missing or damaged"):
        run(tmp_path, *TWO)
    shutil.rmtree(path.parent)
    assert run(tmp_path, *TWO)["test"] == whole["test"]
    (tmp_path / "result.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000004")
    path.write_bytes(b"{")
    with pytest.raises(ConfigError, match="type resume=never to start anew"):
        run(tmp_path, *TWO)


def test_resume_never_starts_anew(tmp_path: Path) -> None:
    first = run(tmp_path, *TWO)
    (tmp_path / "result.json").unlink()
    again = run(tmp_path, *TWO, "resume=never")
    assert again["test"] == first["test"] and untimed_metrics(tmp_path)[0]["step"] > 0
    assert again["resumed_step"] == 0


def make_update_infinite(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make the update of exchange `number` of `compressor=none` infinite."""
    aggregate = Dense.aggregate

    def spoiled(self: Dense, grads: Any, state: Any, comm: Any, step: Any) -> Any:
        out = aggregate(self, grads, state, comm, step)
        if step.number != number:
            return out
        return out._replace(update={k: u * torch.inf for k, u in out.update.items()})

    monkeypatch.setattr(Dense, "aggregate", spoiled)


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        ("loss", "the loss of worker 0 was not finite at step 6"),
        ("update", "the update was not finite at step 7"),
        ("late update", "the update was not finite"),  # which is applied after step 8
    ],
)
def test_a_state_that_is_not_finite_is_never_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str, says: str
) -> None:
    """The checkpoint may come before the log line that would report it."""
    backward = Replica.backward

    def bad_loss(self: Replica, row: int, batch: Any, key: Any, clock: Any) -> torch.Tensor:
        return backward(self, row, batch, key, clock) + (torch.nan if key[1] == 6 else 0)

    if spoiled == "loss":
        monkeypatch.setattr(Replica, "backward", bad_loss)
    else:
        make_update_infinite(monkeypatch, 7)
    late = f"trainer.double_buffering={str(spoiled == 'late update').lower()}"
    overrides = "compressor=none trainer.launcher=virtual trainer.max_steps=20".split()
    with pytest.raises(RunFailed, match=f"the run diverged: {says}"):
        run(tmp_path, *overrides, late, "trainer.checkpoint_steps=4")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


def test_a_run_whose_last_update_is_not_finite_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_update_infinite(monkeypatch, 3)
    with pytest.raises(RunFailed, match="the run diverged: the update was not finite at step 3"):
        run(tmp_path, "compressor=none", "trainer.launcher=virtual", "trainer.max_steps=4")
    assert not (tmp_path / "weights.pt").exists()


def test_a_run_that_is_resumed_samples_no_error_twice(tmp_path: Path) -> None:
    """Of the exchanges after 5, 6 and 8 steps only the first is sampled, just before the stop."""
    typed = [*METHODS["zero_one_adam"], *LENGTH, "trainer.launcher=virtual"]
    typed += ["trainer.max_steps=12", "trainer.checkpoint_steps=5"]
    whole = run(tmp_path / "whole", *typed)
    cut = copy_and_cut_back(tmp_path / "whole", 5)
    assert run(cut, *typed)["compression_error"] == whole["compression_error"]
    assert untimed_metrics(cut) == untimed_metrics(tmp_path / "whole")


def test_a_test_that_was_made_up_for_is_in_the_metrics_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is stopped after step 3, where a test is due, and continued, which makes up for it.

    It is killed then, so that it goes on from the checkpoint of step 3 once more.
    """
    typed = ["trainer.launcher=virtual", "trainer.batch_size=200", "trainer.epochs=3"]
    whole = run(tmp_path / "whole", *typed)
    assert whole["steps_per_epoch"] == 3

    def in_step(number: int, what: Callable[[], None]) -> None:
        def spoiled(run: Run, progress: Progress) -> ExchangeResult | None:
            if progress.step == number:
                what()
            return train_step(run, progress)

        monkeypatch.setattr(loop, "train_step", spoiled)

    def die() -> None:
        raise OSError("killed")

    in_step(1, lambda: signal.raise_signal(signal.SIGINT))  # a step before it ends the run
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", *typed)
    assert [line["event"] for line in untimed_metrics(tmp_path / "cut")] == ["compression"]
    in_step(3, die)
    with pytest.raises(RunFailed, match="killed"):
        run(tmp_path / "cut", *typed)
    monkeypatch.undo()
    assert run(tmp_path / "cut", *typed)["test"] == whole["test"]
    assert untimed_metrics(tmp_path / "cut") == untimed_metrics(tmp_path / "whole")


def test_loggers_keep_what_a_checkpoint_has_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[tuple[int, int]] = []  # the last steps of checkpoints and metrics

    def complete_step(self: NoLogger) -> None:
        metrics = RunFiles(tmp_path).read_metrics()
        had.append((last_step(tmp_path / "checkpoints"), metrics[-1]["step"]))

    monkeypatch.setattr(NoLogger, "complete_step", complete_step)
    overrides = ["trainer.max_steps=12", "trainer.checkpoint_steps=4", "trainer.log_every=2"]
    run(tmp_path, "trainer.launcher=virtual", *overrides)
    assert had == [(0, 4), (4, 8)]


def test_a_checkpoint_between_two_lines_has_all_seconds_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes one second here, and the first steps of a process are not timed."""
    monkeypatch.setattr(clock.Clock, "_laps", lambda *_: [clock.Lap("forward", 1.0)])
    overrides = ["trainer.workers=1", "trainer.log_every=20", "trainer.max_steps=20"]
    run(tmp_path, *overrides, "trainer.checkpoint_steps=15", "compressor=none")
    path = tmp_path / "checkpoints" / "step-00000015" / "shared.pt"
    ledger = torch.load(path, weights_only=True)["ledger"]
    assert ledger["totals"][0]["step"] == 15 - clock.WARMUP_STEPS


def test_contents_that_do_not_fit_replace_nothing(tmp_path: Path) -> None:
    """They are checked in full, as the states of a handle are, whatever their checksums say."""
    typed = ("compressor=powersgd", "rank=1", "optimizer=adamw", "estimator=local_steps")
    typed += ("estimator.every=4", "estimator.delay=1")
    trained = build(tmp_path, *typed)
    take_steps(trained, 4)
    trained[0].pipeline.settle(*trained)
    good = deepcopy((shared_content(*trained), [worker_content(*trained, row) for row in range(4)]))
    name, nan = "1.weight", torch.nan
    short, double = torch.zeros(1, 1), torch.zeros(16, 64, dtype=torch.float64)
    moments = "exp_avg"
    spoils: dict[str, Callable[[Any, Any], Any]] = {
        "no optimizer": lambda all_, one: all_.pop("optimizer"),
        "step='4'": lambda all_, one: all_.update(step="4"),
        "exchanges=-1": lambda all_, one: all_.update(exchanges=-1),
        f"nothing for {name} under model": lambda all_, one: all_["model"].pop(name),
        f"values for {name} under model": lambda all_, one: all_["model"][name].fill_(nan),
        "optimizer=": lambda all_, one: all_["optimizer"].pop("state"),
        "another optimizer's": lambda all_, one: all_.update(optimizer=one["inner"]["optimizer"]),
        "float32 values of shape (1, 1)": lambda all_, one: all_["state"][1].update({name: short}),
        "nothing for": lambda all_, one: one["state"][0].pop(name),
        "float64 values": lambda all_, one: one["inner"]["parameters"].update({name: double}),
        f"values for {moments}": lambda all_, one: one["inner"]["optimizer"]["state"][0][
            moments
        ].fill_(nan),
        "meter=7": lambda all_, one: one.update(meter=7),
        "late": lambda all_, one: all_["late"]["update"].update({name: short}),
    }
    fresh = build(tmp_path, *typed)
    before = deepcopy((shared_content(*fresh), [worker_content(*fresh, row) for row in range(4)]))
    for says, spoil in spoils.items():
        print(says)
        shared, workers = deepcopy(good)
        spoil(shared, workers[3])
        with pytest.raises(StateError, match=re.escape(f"the saved state has {says}")):
            restore(*fresh, shared, workers)
        now = shared_content(*fresh), [worker_content(*fresh, row) for row in range(4)]
        assert all(map(alike, tree_leaves(before), tree_leaves(now)))
    restore(*fresh, *good)
    take_steps(fresh, 1)


def alike(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
