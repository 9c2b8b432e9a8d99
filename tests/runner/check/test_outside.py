"""A method from outside of the package, in one Python and one YAML file, end to end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import outside
import processes
import pytest
import torch
from needed import patience

from gcbench.core.conf import Config, conf_directory
from gcbench.runner.check import report
from gcbench.runner.check.command import check, read_methods
from gcbench.runner.check.report import check_method
from gcbench.runner.check.subject import subject_of
from gcbench.runner.launch.local import WorkerFailed

FOLDER = Path(outside.__file__).parent
CONF = FOLDER / "outside_conf"
TRACK = conf_directory() / "track"
ENVIRONMENT = {**os.environ, "WANDB_MODE": "offline"}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a gcbench command in the folder of the method."""
    return processes.command(arguments, FOLDER, ENVIRONMENT, timeout=patience(240))


@pytest.mark.usefixtures("copied_workers")
def test_it_passes_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs in this process, and its workers are forked from it."""
    # It would raise SystemExit if a check failed.
    check(["--config-dir", str(CONF), "compressor=powers"])
    told = capsys.readouterr().out
    lines = told.splitlines()
    assert lines[1] == "tried   min_size=0; min_size=100; error_feedback=true min_size=0"
    assert all(line.startswith(("ok ", "tried ")) for line in lines)
    for name in (
        "unbiased",
        "contractive: delta is 0.8",
        "scope=tensor",
        "4 processes: same updates",
        "2 x 2: same bits",
    ):
        assert f"ok      {name}" in told
    assert (
        "sends: 9.021 bits per value, 3.547 x fewer than fp32, 3.556 x as its paper counts"
        in lines[-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in TRACK.glob("compressor/*.yaml")))
def test_entries_of_the_track_still_pass(name: str) -> None:
    typed = ["check", f"compressor={name}", "--config-dir", "."]
    done = processes.command(typed, TRACK, ENVIRONMENT, timeout=patience(240))
    assert done.returncode == 0, done.stdout


def no_processes(nodes: Sequence[Config]) -> None:
    raise WorkerFailed(1, "", "the cat is on the wire")


def test_a_broken_version_fails_the_right_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "traces_over_gloo", no_processes)
    assert not check_method(subject_of(["broken_methods.RoundsDown"], []))
    promise, processes = [
        line
        for line in capsys.readouterr().out.splitlines()
        if not line.startswith(("ok ", "tried "))
    ]
    assert promise.startswith(
        "FAILED  unbiased: promises to be unbiased, but the mean of 600 updates is "
    )
    assert (
        processes == "FAILED  runs in 4 processes: worker process 1 failed: the cat is on the wire"
    )


def test_a_failure_is_the_exit_status() -> None:
    done = command("check", "broken_methods.NotAMethod")
    assert done.returncode == 1 and done.stdout.startswith(
        "FAILED  has what a method has: NotAMethod has no properties"
    )


def test_an_error_of_theirs_is_told_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    def check() -> None:
        outside.Natural().encode(torch.zeros(1, 3), (3,), None)  # type: ignore[arg-type]

    assert not report.print_line("odd gradients", {"min_size=0": check})
    told = capsys.readouterr().out
    assert told.startswith(
        "FAILED  odd gradients (with min_size=0): AttributeError: 'NoneType' object has no "
        "attribute 'uniform'"
    )
    assert "outside.py, line" in told


def test_it_trains(tmp_path: Path) -> None:
    """The model has 64 x 10 weights and 10 biases: 650 bytes of exponents and 82 of signs."""
    overrides = [
        *"compressor=powers min_size=0 trainer.max_steps=3 trainer.launcher=virtual".split(),
        "model=linear",
    ]
    places = ["logger.mode=disabled", f"directory={tmp_path}"]
    done = command("--config-dir", str(CONF), *overrides, *places)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    facts = (result["status"], result["choices"]["compressor"], result["parameters"])
    assert facts == ("done", "powers", 650)
    assert result["bits_sent"]["per_step"] == 8 * (650 + 82)


def test_settings_of_a_target_are_typed_after_it() -> None:
    subject = subject_of(["gcbench.core.methods.qsgd.QSGD"], ["levels=3", "norm=l2"])
    facts = subject.typed["method"]
    assert facts == {"_target_": "gcbench.core.methods.qsgd.QSGD", "levels": 3, "norm": "l2"}
    assert list(subject.cases) == ["", "min_size=100", "error_feedback=true"]


def test_what_was_typed_is_not_changed() -> None:
    subject = subject_of([], ["compressor=qsgd", "min_size=5"])
    assert {node["min_size"] for node in subject.cases.values()} == {5}
    assert list(subject.cases) == ["", "bucket_size=16", "error_feedback=true bucket_size=16"]
    assert subject.typed["method"]["bucket_size"] == 512


def test_it_is_listed_with_the_others() -> None:
    (found,) = read_methods(["powers"], measure=True, config_dir=str(CONF))
    assert found.about.startswith("Natural compression (Horvath et al., 2019)")
    assert sorted(found.knobs) == ["error_feedback", "min_size"]
    assert found.form == "ours", "its file does not say whose"
    assert found.measured and found.measured.ratio == "3.5", "9.02 bits of 32"
    assert found.measured.promises.split() == ["unbiased", "contractive", "divisible"]
