"""Recorded gradients are those that were compressed.

That real workers record the same is tested in test_svrg.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence import run

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, State, Step
from gcbench.core.methods.dense import Dense
from gcbench.runner.records.gradients import read_gradients

OVERRIDES = (
    "compressor=none trainer.workers=4 trainer.max_steps=5 trainer.record_gradients=[0,3]".split()
)


def test_what_is_read_is_what_was_aggregated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, Grads] = {}
    aggregate = Dense.aggregate

    def watched(self: Dense, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        seen[step.number] = {k: g.clone() for k, g in grads.items()}
        return aggregate(self, grads, state, comm, step)

    monkeypatch.setattr(Dense, "aggregate", watched)
    plain = run(
        tmp_path / "plain", *OVERRIDES, "trainer.launcher=virtual", "trainer.record_gradients=null"
    )
    recorded = run(tmp_path / "run", *OVERRIDES, "trainer.launcher=virtual")
    assert not (tmp_path / "plain" / "gradients").exists()
    assert recorded["bits_sent"] == plain["bits_sent"] and recorded["test"] == plain["test"]
    files = sorted((tmp_path / "run" / "gradients").iterdir())
    assert [path.name for path in files] == ["step-000000.pt", "step-000003.pt"]
    for path, step in zip(files, (0, 3), strict=True):
        recording = read_gradients(path)
        assert recording.step == step and recording.gradients.dtype == torch.float32
        assert recording.gradients.shape == (4, recorded["parameters"])
        assert recording.config["model"] == "mlp" and recording.config["compressor"] == "none"
        assert recording.config["seed"] == 1
        assert list(recording.tensors()) == recording.names == list(seen[step])
        assert all(torch.equal(g, seen[step][name]) for name, g in recording.tensors().items())


def test_steps_that_a_continued_run_has_passed_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = [*OVERRIDES, "trainer.launcher=virtual"]
    run(tmp_path, *short)
    assert "not recorded" not in caplog.text
    run(tmp_path, *short, "trainer.max_steps=7", "trainer.record_gradients=[3,4,6]")
    assert "trainer.record_gradients=[4]: not recorded, as the run continues from" in caplog.text
    names = [path.name for path in sorted((tmp_path / "gradients").iterdir())]
    assert names == ["step-000000.pt", "step-000003.pt", "step-000006.pt"]


def test_local_steps_record_gradients_as_they_were_before_clipping(tmp_path: Path) -> None:
    local = ["estimator=local_steps", "estimator.every=2", "trainer.launcher=virtual"]
    whole = run(tmp_path / "whole", *OVERRIDES, *local)
    clipped = run(tmp_path / "clipped", *OVERRIDES, *local, "estimator.clip_norm=0.001")
    assert whole["test"] != clipped["test"]
    files = [tmp_path / name / "gradients" / "step-000000.pt" for name in ("whole", "clipped")]
    first = [read_gradients(file).gradients for file in files]
    assert torch.equal(*first) and first[0].norm() > 1
