"""Runs change to compiled codecs under way and keep every bit, or stay eager without failing."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from backends import needs_compiler
from compilation_cases import impatient_gcbench, make_impatient
from method_cases import ALL, compressor_of
from needed import patience
from nightly import slow_but
from processes import under_torchrun
from sentence import SMALL, config_of, run

from gcbench.codecs import kernels, native
from gcbench.codecs.kernels import (
    keep_backend,
    kernel,
    run_kernels_by,
    summing_kernel,
    use_backend,
)
from gcbench.launch import compilation, compiler_process
from gcbench.launch.compiler_process import Compiler, Mark, Rehearsal
from gcbench.launch.plan import Machine
from gcbench.private import COMPILER_CACHE
from gcbench.records import RunFiles

QSGD = ["compressor=qsgd", "bits=4", "min_size=0", "bucket_size=64"]
POWERSGD = ["compressor=powersgd", "rank=1", "min_size=0"]
OFTEN = ["schedule=constant", "trainer.log_every=3", "trainer.error_every=5"]
OVERRIDES = [*QSGD, *OFTEN]
FRAGMENTS = ["estimator=local_steps", "estimator.every=2", "estimator.fragments=2"]
VIRTUAL = "trainer.launcher=virtual"
LOCAL = "trainer.launcher=local"
# For each kind of run: its overrides, and how many steps pass before it loads compiled codecs
# that another run has left.
MANNERS = {
    "real workers": ([*QSGD, LOCAL], 0),
    "virtual workers": ([*QSGD, VIRTUAL, "trainer.gpus=4"], 0),
    "overlap": ([*QSGD, LOCAL, "trainer.overlap=true", "trainer.bucket_mib=0.001"], 2),
    "double buffering": ([*QSGD, LOCAL, "trainer.double_buffering=true"], 0),
    "local steps": ([*QSGD, VIRTUAL, *FRAGMENTS], 0),
    "PowerSGD": ([*POWERSGD, VIRTUAL], 0),
}
EXCHANGES = {"as it is", "scattered", "scattered, coded again", "summed", "hierarchical"}
SHAPES = {"w": [40, 130], "b": [7], "v": [3, 999]}


@pytest.fixture(autouse=True)
def eager_afterwards() -> Iterator[None]:
    with keep_backend():
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let runs change to compiled codecs at once, and use only the marks of this test."""
    marks = tmp_path / "marks"
    marks.mkdir()
    make_impatient(marks, monkeypatch.setattr)


@pytest.fixture
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile for real, or change to eager kernels that are called as if they were compiled.

    Compiling takes a minute; test_kernels.py tests that compiled kernels give the same bits.
    """
    if request.param == "compiling":
        needs_compiler()
        yield
        return
    monkeypatch.setattr(compiler_process, "_START", "import sys; sys.stdin.readline()")
    monkeypatch.setattr(Machine, "detect", lambda: Machine(1, 0, {}, compiler=True))
    with run_kernels_by(lambda function, args, kwargs: function(*args, **kwargs)):
        yield


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a process in the background was started")

    monkeypatch.setattr(compilation, "Compiler", refuse)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return cast(dict[str, torch.Tensor], torch.load(folder / "weights.pt", weights_only=True))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("copied_workers", "impatient", "compiler")
@pytest.mark.parametrize(
    ("manner", "compiler"),
    slow_but(
        [(manner, "changing") for manner in ("real workers", "overlap", "local steps")],
        [(manner, how) for manner in MANNERS for how in ("changing", "compiling")],
    ),
    indirect=["compiler"],
)
def test_weights_are_the_same_to_the_bit(tmp_path: Path, manner: str) -> None:
    """This holds for a run that changes under way, for its extension, and for the next run."""
    how, at_once = MANNERS[manner]
    overrides = [*OFTEN, *how]
    steps = "trainer.epochs={}".format
    eager = run(tmp_path / "eager", *overrides, steps(0.5), "trainer.codec_backend=eager")
    assert (eager["codec_backend"], eager["compiled_from_step"]) == ("eager", None)
    before = run(tmp_path / "auto", *overrides, steps(0.25))
    assert (before["codec_backend"], before["compiled_from_step"]) == ("compiled", 4)
    after = run(tmp_path / "auto", *overrides, steps(0.5))
    assert after["compiled_from_step"] == before["steps"] + at_once
    second = run(tmp_path / "second", *overrides, steps(0.5))
    assert second["compiled_from_step"] == at_once
    for name, result in {"auto": after, "second": second}.items():
        assert equal(weights(tmp_path / name), weights(tmp_path / "eager"))
        assert result["compression_error"] == eager["compression_error"]
        assert result["steps"] == eager["steps"] and result["bits_sent"] == eager["bits_sent"]


@pytest.mark.usefixtures("impatient", "compiler")
@pytest.mark.parametrize("compiler", ["changing"], indirect=True)
def test_sums_of_large_models_are_native_from_the_first_step_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_compiler()
    overrides = [*OFTEN, *POWERSGD, VIRTUAL, "trainer.max_steps=6"]
    run(tmp_path / "small", *overrides)
    monkeypatch.setattr(compilation, "NATIVE_VALUES", 1)
    changed = run(tmp_path / "changed", *overrides)
    assert (changed["compiled_from_step"], changed["codec_sums"]) == (4, "native")
    monkeypatch.setattr(compilation, "WORTH_SECONDS", math.inf)
    monkeypatch.setattr(compilation, "WORTH_LOADING_SECONDS", math.inf)
    assert run(tmp_path / "unchanged", *overrides)["compiled_from_step"] is None
    results = {name: weights(tmp_path / name) for name in ("small", "changed", "unchanged")}
    assert equal(results["changed"], results["unchanged"])
    assert not equal(results["changed"], results["small"])


@pytest.mark.usefixtures("impatient", "no_process")
def test_a_run_goes_on_where_native_sums_cannot_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needs_compiler()
    monkeypatch.setattr(compilation, "NATIVE_VALUES", 1)
    monkeypatch.setattr(native, "_library", lambda *_: 1 / 0)
    result = run(tmp_path / "run", *OFTEN, *POWERSGD, VIRTUAL, "trainer.max_steps=6")
    assert (result["status"], result["codec_sums"]) == ("done", "eager")
    assert result["compiled_from_step"] is None and caplog.text.count("compiling them failed") == 1


def test_a_run_that_goes_on_adds_up_as_before_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needs_compiler()
    monkeypatch.setattr(compilation, "WORTH_SECONDS", math.inf)
    monkeypatch.setattr(compilation, "WORTH_LOADING_SECONDS", math.inf)
    overrides = [*OFTEN, *POWERSGD, VIRTUAL, "trainer.keep_weights=true"]
    run(tmp_path / "small", *overrides, "trainer.max_steps=3")
    monkeypatch.setattr(compilation, "NATIVE_VALUES", 1)
    small = run(tmp_path / "small", *overrides, "trainer.max_steps=6")
    assert small["codec_sums"] == "eager" and "which rounds otherwise" not in caplog.text
    assert run(tmp_path / "run", *overrides, "trainer.max_steps=3")["codec_sums"] == "native"
    monkeypatch.setattr(native, "_library", lambda *_: 1 / 0)
    longer = run(tmp_path / "run", *overrides, "trainer.max_steps=6")
    assert longer["codec_sums"] == "native, then eager"
    assert "from step 3 on, eager code adds floats up in place of native code" in caplog.text


@pytest.mark.slow
def test_ranks_of_torchrun_change_at_the_same_step(tmp_path: Path) -> None:
    needs_compiler()
    overrides = [*SMALL, *OVERRIDES, "model.widths=[16]", "trainer.gpus=2", "trainer.max_steps=8"]
    folders = {}
    for backend in ("eager", "auto"):
        folders[backend] = tmp_path / backend
        typed = [*overrides, f"trainer.codec_backend={backend}", f"directory={folders[backend]}"]
        ranks = under_torchrun(
            impatient_gcbench, typed, typed, folder=tmp_path, timeout=patience(240)
        )
        for done in ranks:
            assert done.returncode == 0, done.stderr
    said = [done.stdout.count("codecs are compiled from step 4 on") for done in ranks]
    assert said == [1, 0]
    result = RunFiles(folders["auto"]).read_result()
    assert result is not None
    assert (result.launcher, result.compiled_from_step) == ("torchrun", 4)
    assert equal(weights(folders["auto"]), weights(folders["eager"]))
    assert len([*tmp_path.glob("gcbench-*.txt")]) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("text", ["", "nan", "0.0.1"])
def test_a_mark_that_is_none_is_passed_over(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mark").write_text(text)
    monkeypatch.setattr(Mark, "on", lambda _: Mark(tmp_path / "mark"))
    result = run(tmp_path / "run", *OVERRIDES, VIRTUAL, "trainer.max_steps=2")
    assert result["compiled_from_step"] is None


def test_a_mark_is_of_one_code_machine_and_method(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = rehearsal_of("bits=4")
    mark = Mark.on(rehearsal)
    assert mark == Mark.on(replace(rehearsal, rank=1, number=7))
    others = [
        Mark.on(other)
        for other in (rehearsal_of("bits=3"), replace(rehearsal, threads=2, messages=[]))
    ]
    monkeypatch.setattr(compiler_process.platform, "node", lambda: "another machine")
    others.append(Mark.on(rehearsal))
    monkeypatch.setattr(torch, "__version__", "99.0")
    others.append(Mark.on(rehearsal))
    monkeypatch.setattr(compiler_process, "_sources", lambda: ["another code"])
    others.append(Mark.on(rehearsal))
    assert len({mark.path, *(other.path for other in others)}) == 6


def test_short_runs_start_no_process(tmp_path: Path, no_process: None) -> None:
    result = run(tmp_path, *OVERRIDES, VIRTUAL, "trainer.max_steps=12")
    assert (result["codec_backend"], result["compiled_from_step"]) == ("eager", None)


@pytest.mark.usefixtures("impatient", "no_process")
def test_coding_that_waits_for_a_core_is_not_worth_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "WORTH_SECONDS", 1e-9)
    monkeypatch.setattr(compilation.time, "process_time", lambda: 1.0)
    result = run(tmp_path, *OVERRIDES, VIRTUAL, "trainer.max_steps=22")
    assert (result["status"], result["compiled_from_step"]) == ("done", None)


@pytest.mark.parametrize("lack", ["compiler", "memory"])
def test_what_a_machine_lacks_is_one_sentence(
    lack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(1, 0, {}, compiler=lack != "compiler")
    monkeypatch.setattr(Machine, "detect", lambda: machine)
    if lack == "memory":
        monkeypatch.setattr(compilation, "free_bytes", lambda: 1 << 10)
    monkeypatch.setattr(compilation, "WORTH_SECONDS", 1e-9)
    result = run(tmp_path, *OVERRIDES, VIRTUAL, "trainer.max_steps=22")
    assert (result["status"], result["compiled_from_step"]) == ("done", None)
    (sentence,) = warnings_of(caplog)
    assert sentence.startswith("codecs stay eager: ")
    assert ("install g++" if lack == "compiler" else "more memory than is free") in sentence


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "why",
    [
        pytest.param("the compiler fails", marks=pytest.mark.slow),
        pytest.param("others may write the cache", marks=pytest.mark.slow),
        "killed",
    ],
)
def test_a_failure_is_one_warning(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv(COMPILER_CACHE, str(cache))
    if why == "the compiler fails":
        monkeypatch.setenv("CXX", "false")
        expected = "Error"
    elif why == "killed":
        monkeypatch.setattr(Compiler, "has_ended", kill)
        expected = "killed by SIGKILL"
    else:
        cache.chmod(0o777)
        expected = "cache can be written by others"
    machine = Machine(1, 0, {}, compiler=True)
    monkeypatch.setattr(Machine, "detect", lambda: machine)
    result = run(tmp_path / "run", *OVERRIDES, VIRTUAL, "trainer.max_steps=6")
    assert (result["status"], result["codec_backend"]) == ("done", "eager")
    (warning,) = warnings_of(caplog)
    assert warning.startswith("codecs stay eager, as compiling them failed: ")
    assert expected in warning and "\n" not in warning


def kill(compiler: Compiler) -> bool:
    compiler._process.kill()
    compiler._process.wait()
    return True


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that mention codecs."""
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    return [message for message in messages if "codecs" in message]


def test_a_run_that_ends_first_ends_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    needs_compiler()
    compilers: list[Compiler] = []
    start = Compiler.__init__

    def keep(compiler: Compiler, rehearsal: Rehearsal) -> None:
        start(compiler, rehearsal)
        compilers.append(compiler)

    monkeypatch.setattr(Compiler, "__init__", keep)
    monkeypatch.setattr(Compiler, "has_ended", lambda compiler: False)
    result = run(tmp_path / "run", *OVERRIDES, VIRTUAL, "trainer.max_steps=6")
    assert (result["status"], result["compiled_from_step"]) == ("done", None)
    (compiler,) = compilers
    assert compiler._process.returncode == -signal.SIGTERM


def rehearsal_of(*overrides: str) -> Rehearsal:
    config = config_of("compressor=qsgd", "min_size=0", *overrides)["compressor"]
    return Rehearsal(
        compressor=config,
        threads=1,
        shapes=SHAPES,
        messages=[list(SHAPES)],
        workers=2,
        workers_per_host=None,
        rank=0,
        processes=1,
        number=0,
        sums="eager",
    )


def test_the_process_ends_with_the_run_and_with_its_parent() -> None:
    compiler = Compiler(rehearsal_of())
    start = time.monotonic()
    compiler.end()
    assert (
        time.monotonic() - start < patience(5) and compiler._process.returncode == -signal.SIGTERM
    )
    orphan = Compiler(rehearsal_of())
    assert orphan._process.stdin is not None
    orphan._process.stdin.close()
    assert orphan._process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("choice, variant", [key for key in ALL if key[1] in EXCHANGES])
def test_a_step_between_processes_can_be_rehearsed_alone(choice: str, variant: str) -> None:
    rehearsal = replace(
        rehearsal_of(), workers=4, workers_per_host=2, rank=1, processes=2, number=5
    )
    assert rehearsal.try_with("eager", "eager", compressor_of(choice, variant)) is None


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

    use_backend("compiled", "eager", may_fall_back=True)
    x = torch.arange(5.0)
    assert add_up(x) == 10 and compiled == ["no"]
    assert torch.equal(breaks(x), 2 * x) and torch.equal(breaks(x), 2 * x)
    assert kernels._backend == "eager" and caplog.text.count("a codec failed to compile") == 1
