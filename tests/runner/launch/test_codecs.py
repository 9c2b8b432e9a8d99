"""Runs use native codecs from the first step, with the bits of eager ones, or eager ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import pytest
import torch
from backends import needs_compiler
from nightly import slow_but
from sentence import run

from gcbench.core.codecs.kernels import keep_backend
from gcbench.core.errors import ConfigError
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.launch import worker
from gcbench.runner.launch.plan import Machine

QSGD = ["compressor=qsgd", "bits=4", "min_size=0", "bucket_size=64", "error_feedback=true"]
POWERSGD = ["compressor=powersgd", "rank=1", "min_size=0"]
OFTEN = ["schedule=constant", "trainer.log_every=3", "trainer.error_every=5"]
VIRTUAL = "trainer.launcher=virtual"
EAGER = "trainer.codec_backend=eager"
MANNERS = {
    "real workers": ["trainer.launcher=local"],
    "virtual workers": [VIRTUAL, "trainer.workers=4"],
    "overlap": ["trainer.launcher=local", "trainer.overlap=true", "trainer.bucket_mib=0.001"],
    "scattered": [VIRTUAL, "exchange=scatter"],
    "summed": [VIRTUAL, "exchange=sum"],
    "hierarchical": [VIRTUAL, "trainer.workers=4", "exchange=hierarchical", "workers_per_node=2"],
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with keep_backend():
        yield


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return cast(dict[str, torch.Tensor], torch.load(folder / "weights.pt", weights_only=True))


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("manner", slow_but(["overlap", "scattered"], [*MANNERS]))
def test_native_and_eager_runs_are_equal_to_the_bit(tmp_path: Path, manner: str) -> None:
    needs_compiler()
    typed = [*QSGD, *OFTEN, *MANNERS[manner], "trainer.max_steps=6"]
    native = run(tmp_path / "native", *typed)
    eager = run(tmp_path / "eager", *typed, EAGER)
    assert [r["codec_backend"] for r in (native, eager)] == ["native", "eager"]
    ours, theirs = weights(tmp_path / "native"), weights(tmp_path / "eager")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert native["compression_error"] == eager["compression_error"]
    assert native["bits_sent"] == eager["bits_sent"]


def test_a_run_that_goes_on_adds_up_as_before_or_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    needs_compiler()
    overrides = [*POWERSGD, *OFTEN, VIRTUAL, "trainer.keep_weights=true", f"directory={tmp_path}"]
    assert run(tmp_path, *overrides, "trainer.max_steps=3")["codec_sums"] == "native"
    longer = run(tmp_path, *overrides, "trainer.max_steps=6", EAGER)
    assert (longer["codec_sums"], longer["codec_backend"]) == ("native, then eager", "eager")
    assert "from step 3 on, eager code adds floats up in place of native code" in caplog.text


@pytest.mark.parametrize("lack", ["no compiler", "a broken one"])
def test_what_a_machine_lacks_is_one_sentence(
    lack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> NoReturn:
        raise RuntimeError("the C++ codecs do not compile on this machine: error")

    machine = Machine.detect()
    monkeypatch.setattr(Machine, "detect", lambda: replace(machine, compiler=lack != "no compiler"))
    monkeypatch.setattr(worker, "load_native", fail)
    result = run(tmp_path / "run", *QSGD, VIRTUAL, "trainer.max_steps=2")
    assert (result["status"], result["codec_backend"]) == ("done", "eager")
    (said,) = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "codecs" in record.getMessage()
    ]
    assert said.startswith("codecs are eager, and slower: ")
    assert ("install g++" if lack == "no compiler" else "do not compile") in said
    with pytest.raises((ConfigError, RunFailed), match="type trainer.codec_backend=eager"):
        run(tmp_path / "asked", *QSGD, VIRTUAL, "trainer.codec_backend=compiled")
