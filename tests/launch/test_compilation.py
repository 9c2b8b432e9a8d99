"""Runs change to compiled codecs under way, to the same bits, or stay eager in peace."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from backends import needs_compiler
from method_cases import ALL, compressor_of
from sentence import config_of, run

from gcbench.codecs import kernels
from gcbench.codecs.kernels import kernel, summing_kernel, use_backend
from gcbench.launch import compilation
from gcbench.launch.compilation import Compiler, Rehearsal
from gcbench.launch.plan import Machine
from gcbench.private import COMPILER_CACHE
from gcbench.records.clock import Lap, Ledger

WORDS = [
    "compressor=qsgd",
    "bits=4",
    "min_size=0",
    "bucket_size=64",
    "schedule=constant",
    "trainer.log_every=3",
    "trainer.error_every=5",
]
LAUNCHERS = {"real": ["trainer.launcher=local"], "virtual": ["trainer.launcher=virtual"]}
EXCHANGES = {"as it is", "scattered", "scattered, coded again", "summed", "hierarchical"}
SMALL = {"w": [40, 130], "b": [7], "v": [3, 999]}


@pytest.fixture(autouse=True)
def eager_afterwards() -> Iterator[None]:
    yield
    use_backend("eager")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run compile after two steps, and wait for that after two more."""

    def wait(compiler: Compiler) -> bool:
        compiler._process.wait()
        return True

    monkeypatch.setattr(compilation, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(compilation, "LOOK_STEPS", 2)
    monkeypatch.setattr(Compiler, "has_ended", wait)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a process in the background was started")

    monkeypatch.setattr(compilation, "Compiler", refuse)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return cast(dict[str, torch.Tensor], torch.load(folder / "weights.pt", weights_only=True))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("copied_workers", "impatient")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_weights_are_the_same_to_the_bit(tmp_path: Path, launcher: str) -> None:
    """Those of a run that goes on from a checkpoint, eager at first, are too."""
    needs_compiler()
    words = [*WORDS, *LAUNCHERS[launcher]]
    steps = "trainer.epochs={}".format
    eager = run(tmp_path / "eager", *words, steps(0.5), "trainer.codec_backend=eager")
    assert (eager["codec_backend"], eager["compiled_from_step"]) == ("eager", None)
    before = run(tmp_path / "auto", *words, steps(0.25))
    assert (before["codec_backend"], before["compiled_from_step"]) == ("compiled", 4)
    after = run(tmp_path / "auto", *words, steps(0.5))
    assert after["compiled_from_step"] == before["steps"] + 4 and after["steps"] == eager["steps"]
    assert equal(weights(tmp_path / "auto"), weights(tmp_path / "eager"))
    assert after["compression_error"] == eager["compression_error"]


def test_short_runs_start_no_process(tmp_path: Path, no_process: None) -> None:
    result = run(tmp_path, *WORDS, *LAUNCHERS["virtual"], "trainer.max_steps=12")
    assert (result["codec_backend"], result["compiled_from_step"]) == ("eager", None)


@pytest.mark.usefixtures("impatient", "no_process")
def test_without_a_compiler_codecs_stay_eager_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = Machine(1, 0, {}, compiler=False)
    monkeypatch.setattr(Machine, "detect", lambda: found)
    result = run(tmp_path, *WORDS, *LAUNCHERS["virtual"], "trainer.max_steps=6")
    assert (result["status"], result["compiled_from_step"]) == ("done", None)
    assert "eager" not in caplog.text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("why", ["the compiler fails", "others may write the cache"])
def test_a_failure_is_one_warning(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv(COMPILER_CACHE, str(cache))
    if why == "the compiler fails":
        monkeypatch.setenv("CXX", "false")
        expected = "Error"
    else:
        cache.chmod(0o777)
        expected = "cache can be written by others"
    found = Machine(1, 0, {}, compiler=True)
    monkeypatch.setattr(Machine, "detect", lambda: found)
    result = run(tmp_path / "run", *WORDS, *LAUNCHERS["virtual"], "trainer.max_steps=6")
    assert (result["status"], result["codec_backend"]) == ("done", "eager")
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING][1:]
    assert warning.getMessage().startswith("codecs stay eager, as compiling them failed: ")
    assert expected in warning.getMessage() and "\n" not in warning.getMessage()


def make_compiler() -> Compiler:
    names = list(SMALL)
    config = config_of("compressor=qsgd", "min_size=0")["compressor"]
    return Compiler(config, Rehearsal(SMALL, [names], 2, None, 0, 1, 0), threads=1)


def test_the_process_ends_with_the_run_and_with_its_parent() -> None:
    compiler = make_compiler()
    start = time.monotonic()
    compiler.end()
    assert time.monotonic() - start < 5 and compiler._process.returncode == -signal.SIGTERM
    orphan = make_compiler()
    assert orphan._process.stdin is not None
    orphan._process.stdin.close()
    assert orphan._process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("choice, variant", [key for key in ALL if key[1] in EXCHANGES])
def test_a_step_between_processes_can_be_rehearsed_alone(choice: str, variant: str) -> None:
    rehearsal = Rehearsal(SMALL, [list(SMALL)], 4, 2, rank=1, processes=2, number=5)
    rehearsal.take_steps(compressor_of(choice, variant), rehearsal.make_gradients())


def test_sums_stay_eager_and_a_kernel_that_fails_falls_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiled: list[str] = []

    @summing_kernel
    def add_up(x: torch.Tensor) -> torch.Tensor:
        compiled.append("no" if not torch.compiler.is_compiling() else "yes")
        return x.sum()

    @kernel
    def breaks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(x.sum()) > 0 else x

    use_backend("compiled", sums=False, may_fall_back=True)
    x = torch.arange(5.0)
    assert add_up(x) == 10 and compiled == ["no"]
    assert torch.equal(breaks(x), 2 * x) and torch.equal(breaks(x), 2 * x)
    assert kernels._backend == "eager" and caplog.text.count("compiling one failed") == 1


def test_times_begin_anew_but_go_on_elapsing() -> None:
    ledger = Ledger(1)
    ledger.add([[[Lap("encode", 3.0)]]])
    ledger.begin_anew()
    assert ledger.seconds() is None and ledger.elapsed() == 3
    ledger.add([[[Lap("encode", 1.0)]]])
    later = Ledger(1)
    later.load(ledger.state())
    seconds = later.seconds()
    assert seconds is not None and seconds["encode"]["mean"] == 1 and later.elapsed() == 4
