"""Benchmarks as commands: they time steps, and name in one sentence what prevents that."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from needed import lacks, patience
from processes import command, new_command

from gcbench.core.errors import ConfigError
from gcbench.runner.bench.local import read_input
from gcbench.runner.bench.start import bench
from gcbench.runner.launch.plan import Machine
from gcbench.runner.records.gradients import GradientFiles
from gcbench.runner.settings.config import BenchConfig


def asked_for(**more: Any) -> BenchConfig:
    keys: dict[str, Any] = {"workers": [], "device": "cpu", "codec_backend": "eager", **more}
    return BenchConfig.model_construct(**keys)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"codec_backend": "compiled"},
            r"codec_backend=compiled: there is no C\+\+ compiler here; .* codec_backend=eager",
        ),
        ({"device": "cuda"}, "device=cuda: there is no CUDA device here; type device=cpu"),
    ],
)
def test_what_is_not_here_is_named(
    asked: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "detect", staticmethod(lambda: Machine(2, 0, {}, compiler=False)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=message):
        bench(asked_for(**asked), str(tmp_path))


def test_processes_without_a_gpu_of_their_own_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    says = r"workers=\[1, 4\]: .* type workers=\[2\], or device=cpu"
    with pytest.raises(ConfigError, match=says):
        bench(asked_for(workers=[1, 4], device="cuda"), str(tmp_path))


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(
                    not torch.cuda.is_available(), reason=lacks("gpu", "there is none")
                ),
            ],
        ),
    ],
)
def test_a_step_is_timed_beside_a_dense_one_and_the_hook(device: str, tmp_path: Path) -> None:
    overrides = ["compressor=powersgd", f"device={device}", "sizes=[1000]", "draws=[]"]
    overrides += [
        *"codec_backend=eager rounds=1 workers=[1]".split(),
        f"outputs={tmp_path}",
        "name=one",
    ]
    begin = new_command if device == "cuda" else command
    done = begin(("bench", *overrides), tmp_path, os.environ, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("bench-one-*/bench.json")
    measured = json.loads(file.read_text())
    rows = measured["network"]
    assert measured["local"] == []  # with draws=[] it has no input
    assert [row["what"] for row in rows] == ["method", "dense", "powerSGD_hook"]
    assert all(row["milliseconds"] > 0 and row["workers"] == 1 for row in rows)


def test_processes_time_a_step_on_recorded_gradients_a_worker_each(tmp_path: Path) -> None:
    gradients = torch.arange(30.0).view(3, 10)
    GradientFiles(tmp_path, {}).write(0, {"weight": [2, 5]}, gradients)
    file = tmp_path / "step-000000.pt"
    taken = [read_input(file, torch.device("cpu"), worker).grads["weight"] for worker in range(4)]
    assert torch.equal(torch.cat(taken).flatten(1), gradients[[0, 1, 2, 0]])
    overrides = ["compressor=none", f"recorded={file}", "codec_backend=eager", "rounds=1"]
    overrides += ["workers=[2]", f"outputs={tmp_path}", "name=one", "device=cpu"]
    done = command(("bench", *overrides), tmp_path, os.environ, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("bench-one-*/bench.json")
    assert {row["values"] for row in json.loads(result.read_text())["network"]} == {10}
