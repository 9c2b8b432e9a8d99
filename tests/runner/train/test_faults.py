"""Long runs: workers that die, hang or err, disks that fill up, replicas that drift."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_pool import pool
from needed import patience, skip
from nightly import each, slow_but
from sentence import SMALL, config_of, run, untimed_metrics
from train_cases import drift_error, drift_error_at_the_end

from gcbench.runner.config.errors import RunFailed
from gcbench.runner.launch import start, worker
from gcbench.runner.launch.local import WorkerFailed
from gcbench.runner.records.loggers import NoLogger
from gcbench.runner.records.schema import Result
from gcbench.runner.train.drift import parameter_hash

LENGTH = [
    *"trainer.max_steps=24 trainer.checkpoint_steps=4 trainer.checkpoint_keep=9".split(),
    "trainer.log_every=3",
]
METHOD = ["compressor=qsgd", "min_size=0", "error_feedback=true", "alpha=0.2", "beta=0.9"]
OVERRIDES = [*METHOD, *LENGTH, "trainer.error_every=null", "trainer.eval_every=null"]
REAL = "trainer.launcher=local"


def faulty(fault: str, at: int, spent: Path, rank: int = 1) -> list[str]:
    model = {"_target_": "faulty.Faulty", "fault": fault, "at": at, "rank": rank, "spent": spent}
    return [
        f"{'' if key == '_target_' else '+'}model.{key}={value}" for key, value in model.items()
    ]


def result_of(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state_dict: dict[str, torch.Tensor] = torch.load(
        folder / "checkpoints" / "step-00000020" / "shared.pt", weights_only=True
    )["model"]
    return state_dict


def ends_as_without(folder: Path, overrides: list[str], spent: Path) -> None:
    """Assert that the run, when continued, ends like one to which nothing happened.

    It continues in one process, where virtual workers compute the same bits.
    """
    assert spent.exists()
    run(folder, *overrides, "trainer.launcher=virtual")
    run(folder.parent / "whole", *overrides, "trainer.launcher=virtual")
    one, other = weights(folder), weights(folder.parent / "whole")
    assert all(torch.equal(one[k], other[k]) for k in one)
    assert result_of(folder)["bits_sent"] == result_of(folder.parent / "whole")["bits_sent"]
    assert is_continued(folder, spent)


def is_continued(folder: Path, spent: Path) -> bool:
    """Return whether the checkpoint of step 4 is from before the fault.

    A run that started anew would have written it again.
    """
    return (
        folder / "checkpoints" / "step-00000004" / "manifest.json"
    ).stat().st_mtime_ns < spent.stat().st_mtime_ns


@pytest.mark.capability
@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("overlap", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_a_killed_worker_ends_the_others_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, overlap: str
) -> None:
    spent, at = tmp_path / "spent", random.randrange(5, 20)
    overrides = [*OVERRIDES, *faulty("kill", at, spent)]
    with pytest.raises(RunFailed, match="worker 1 failed: killed by SIGKILL"):
        run(tmp_path / "cut", *overrides, REAL, f"trainer.overlap={overlap}")
    assert time.time() - spent.stat().st_mtime < patience(30), "the others wait for minutes"
    result = result_of(tmp_path / "cut")
    assert (result["status"], result["reason"]) == ("failed", "worker 1: killed by SIGKILL")
    ends_as_without(tmp_path / "cut", overrides, spent)


@pytest.mark.slow
def test_a_run_starts_again_by_itself(tmp_path: Path) -> None:
    spent = tmp_path / "spent"
    overrides = [*OVERRIDES, *faulty("kill", 9, spent)]
    result = run(tmp_path / "restarted", *overrides, REAL, "trainer.max_restarts=1")
    whole = run(tmp_path / "whole", *overrides, "trainer.launcher=virtual")
    assert is_continued(tmp_path / "restarted", spent) and result["status"] == "done"
    assert result["bits_sent"] == whole["bits_sent"]
    one, other = weights(tmp_path / "restarted"), weights(tmp_path / "whole")
    assert all(torch.equal(one[k], other[k]) for k in one)
    lines = [
        json.loads(line)
        for line in (tmp_path / "restarted" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == list(range(3, 25, 3))


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["parent", "all"])
def test_a_command_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path, whom: str) -> None:
    spent, at = tmp_path / "spent", random.randrange(5, 20)
    overrides = [*OVERRIDES, *faulty(f"kill {whom}", at, spent)]
    code = (
        "import sys; from pathlib import Path; from sentence import run; run(Path(sys.argv[1]), "
        "*sys.argv[2:])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path / "cut"), *overrides, REAL]
    parent = subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        assert parent.wait(timeout=patience(300)) == -signal.SIGKILL
        while group_lives(parent.pid):
            assert time.time() - spent.stat().st_mtime < patience(30)
            time.sleep(0.05)
    finally:
        if group_lives(parent.pid):
            os.killpg(parent.pid, signal.SIGKILL)
    if whom == "parent":  # the workers notice, and leave a checkpoint
        assert result_of(tmp_path / "cut")["status"] == "interrupted"
    ends_as_without(tmp_path / "cut", overrides, spent)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["false", "true"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [("hang", "which is in forward of step 7"), ("stop", "which does not answer")],
)
def test_a_worker_that_hangs_is_named_with_its_phase(
    tmp_path: Path, fault: str, says: str, overlap: str
) -> None:
    overrides = [
        *OVERRIDES,
        *faulty(fault, 7, tmp_path / "spent"),
        "trainer.timeout_seconds=15",
        f"trainer.overlap={overlap}",
    ]
    with pytest.raises(
        RunFailed, match=f"waited 15 s in exchange of step 7 for worker process 1, {says}"
    ):
        run(tmp_path / "run", *overrides, REAL)
    assert result_of(tmp_path / "run")["status"] == "failed"


def test_a_gradient_that_is_not_finite_is_named_with_its_worker(tmp_path: Path) -> None:
    """The update need not show it: signs, for example, are finite."""
    overrides = [
        "compressor=signum",
        *LENGTH,
        *faulty("nan gradient", 11, tmp_path / "spent", rank=0),
        "trainer.launcher=virtual",
    ]
    says = "the run diverged: the gradient of worker 1 was not finite at step 5"
    with pytest.raises(RunFailed, match=says):
        run(tmp_path / "run", *overrides)
    result = result_of(tmp_path / "run")
    assert result["status"] == "diverged" and result["steps"] == 6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=144k", "gcbench", str(folder)], capture_output=True
    )
    if mounted.returncode:
        skip("root", "nobody else can make a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_checkpoint_before_usable(small_disk: Path, tmp_path: Path) -> None:
    folder = small_disk / "run"
    overrides = [*OVERRIDES, "trainer.launcher=virtual", "trainer.max_steps=24"]
    says = r"step-\d+ could not be written \(.*No space.*\); .*step-\d+ is whole; make room"
    with pytest.raises(RunFailed, match=says):
        run(folder, *overrides)
    result = result_of(folder)
    assert result["status"] == "failed" and "No space" in result["reason"]
    assert not list((folder / "checkpoints").glob("*.partial"))
    subprocess.run(["mount", "-o", "remount,size=9m", str(small_disk)], check=True)
    run(folder, *overrides)
    whole = run(tmp_path / "whole", *overrides)
    assert result_of(folder)["bits_sent"] == whole["bits_sent"]
    assert untimed_metrics(folder)[-1] == untimed_metrics(tmp_path / "whole")[-1]


def test_a_run_that_could_not_keep_its_end_is_continued(tmp_path: Path) -> None:
    """What lies in the way makes a last write fail; the same command makes up for it."""
    folder, spent = tmp_path / "run", tmp_path / "spent"
    overrides = [*OVERRIDES, *faulty("raise", 44, spent, rank=0), "trainer.launcher=virtual"]
    with pytest.raises(RunFailed, match="a fault of the model"):  # so that checkpoints stay
        run(folder, *overrides)
    for way, last in (("checkpoints/step-00000024.partial", 20), ("weights.pt.new", 24)):
        (folder / way).touch() if last == 20 else (folder / way).mkdir()
        says = rf"could not be written \(.*\); .*step-000000{last} is whole; once it can be written"
        with pytest.raises(RunFailed, match=says) as error:
            run(folder, *overrides)
        assert "keep_weights=false" in str(error.value)
        result = result_of(folder)
        assert (result["status"], result["steps"]) == ("failed", 24) and result["bits_sent"]
        (folder / way).unlink() if last == 20 else (folder / way).rmdir()
    ended, whole = run(folder, *overrides), run(tmp_path / "whole", *overrides)
    assert ended["weights"] == "weights.pt" and ended["resumed_step"] == 24
    for key in ("status", "steps", "test", "bits_sent", "compression_error"):
        assert ended[key] == whole[key]
    one, other = (torch.load(tmp_path / name / "weights.pt") for name in ("run", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert untimed_metrics(folder) == untimed_metrics(tmp_path / "whole")
    assert run(folder, *overrides, "trainer.max_steps=26")["extended"]


def test_ctrl_c_after_the_last_step_of_a_row_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too late to stop the row, which is done; the rows after it would run on regardless."""
    keep = worker.save_weights

    def interrupted(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        keep(*args)

    monkeypatch.setattr(worker, "save_weights", interrupted)
    overrides = ["trainer.launcher=virtual", "trainer.max_steps=2"]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "row", *overrides, in_sweep=True)
    assert result_of(tmp_path / "row")["status"] == "done"
    assert run(tmp_path / "alone", *overrides)["status"] == "done"


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("launcher", ["local", "virtual"])
def test_a_failure_after_the_result_leaves_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launcher: str
) -> None:
    """For example if a worker is killed while W&B finishes, which may take seconds."""
    processes = start.run_processes

    def killed_at_the_end(*args: Any) -> None:
        processes(*args)
        raise WorkerFailed(0, "", "killed by SIGKILL")

    def finish(self: NoLogger, result: Result) -> None:
        raise RuntimeError("killed by SIGKILL")

    monkeypatch.setattr(start, "run_processes", killed_at_the_end)
    monkeypatch.setattr(NoLogger, "finish", finish)
    result = run(tmp_path, f"trainer.launcher={launcher}", "trainer.max_steps=2")
    assert (result["status"], result["steps"]) == ("done", 2)
    assert "had ended" in caplog.text and "killed by SIGKILL" in caplog.text


def test_a_result_that_cannot_be_written_does_not_hide_why_the_run_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "result.json.new").mkdir()  # where the result is written before it is moved
    overrides = faulty("raise", 5, tmp_path / "spent", rank=0)
    with pytest.raises(RunFailed, match="the run failed: RuntimeError: a fault of the model"):
        run(tmp_path, *overrides, "trainer.launcher=virtual")
    assert f"cannot write {tmp_path / 'result.json'}" in caplog.text


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("launcher", slow_but(["virtual"], ["virtual", "local"]))
def test_whatever_an_error_says_its_cause_is_told_in_short_and_safely(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], launcher: str
) -> None:
    for fault, says in (
        ("raise odd text", ["RuntimeError: ", r"\udcff", r"\x1b[2J", "the beginning", "the end"]),
        ("raise mute", ["Mute: (its message raises ValueError)"]),
    ):
        folder = tmp_path / fault[-4:]
        folder.mkdir()
        overrides = faulty(f"'{fault}'", 3, folder / "spent", rank=0)
        with pytest.raises(RunFailed) as failed:
            run(folder, *overrides, f"trainer.launcher={launcher}")
        result = result_of(folder)
        assert result["status"] == "failed"
        for text in (result["reason"], str(failed.value)):
            assert all(word in text for word in says), text
            assert "\x1b" not in text and len(text) < 2200
        printed = "".join(capfd.readouterr())
        assert "in strike" in printed and "\x1b" not in printed and len(printed) < 30_000


def test_a_record_that_cannot_be_written_is_told_in_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.csv.new").mkdir()
    says = "the run failed: WriteError: cannot write .*/metrics.csv .*; type another outputs="
    with pytest.raises(RunFailed, match=says):
        run(tmp_path, "logger=csv", "trainer.launcher=virtual", "trainer.max_steps=2")
    assert "Traceback" not in capfd.readouterr().err


def test_replicas_that_drift_are_named() -> None:
    assert pool(4).run(drift_error, ()) == [None] * 4
    assert (
        pool(4).run(drift_error, (2,))
        == ["after step 9 the parameters of process 2 were not those of process 0"] * 4
    )
    assert (
        pool(4).run(drift_error, (0, 3))
        == ["after step 9 the parameters of processes 0, 3 were not those of process 1"] * 4
    )


def test_replicas_are_compared_at_the_end_however_seldom_before() -> None:
    overrides = (
        "trainer.workers=2 trainer.max_steps=3 trainer.log_every=3 trainer.error_every=null".split()
    )
    says = "after step 2 the parameters of process 1 were not those of process 0"
    rarely = config_of(*SMALL, *overrides, "trainer.drift_every=100")
    assert pool(2).run(drift_error_at_the_end, rarely) == [says] * 2
    never = config_of(*SMALL, *overrides, "trainer.drift_every=null")
    assert pool(2).run(drift_error_at_the_end, never) == [None] * 2


@pytest.mark.slow
def test_a_run_whose_replicas_drift_fails(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, *faulty("drift", 7, tmp_path / "spent"), "trainer.drift_every=5"]
    says = "after step 9 the parameters of process 1 were not those of process 0"
    with pytest.raises(RunFailed, match=f"ReplicasDrifted: {says}"):
        run(tmp_path / "run", *overrides, REAL)
    assert says in result_of(tmp_path / "run")["reason"]


@each("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_hash_sees_every_bit_and_every_exchange(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    parameters = [
        torch.randn(70, 1000, generator=generator).to(dtype),
        torch.randn(3, generator=generator).to(dtype),
    ]
    seen = {
        parameter_hash(parameters),
        parameter_hash([parameters[0].T.contiguous(), parameters[1]]),
    }
    for place in (0, 65_535, 65_536, 69_999):
        for bit in (0, 7, 15):
            changed = parameters[0].clone()
            changed.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]).view(-1)[
                place
            ] ^= 1 << bit if bit < 15 else -(1 << 15)
            seen.add(parameter_hash([changed, parameters[1]]))
    assert len(seen) == 14
    assert parameter_hash([p.clone() for p in parameters]) in seen
