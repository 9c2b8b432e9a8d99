"""scripts/faults: what it draws, what it notices, and a disturbed run that ends as another."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from needed import patience
from nightly import each, slow_but
from processes import command

from gcbench.runner.config.keys import method_keys

SCRIPTS = Path(__file__).parents[2] / "scripts"
STEPS = 8
TYPED = (
    "compressor=qsgd error_feedback=true min_size=0 model.widths=[8] logger=csv directory=run "
    f"trainer.launcher=local trainer.threads=1 trainer.max_steps={STEPS} trainer.log_every=1 "
    "trainer.error_every=2 trainer.checkpoint_steps=3 trainer.record_gradients=[0,5] "
    "trainer.keep_weights=true trainer.codec_backend=eager"
)
END, OLDER = f"checkpoints/step-{STEPS:08}", "checkpoints/step-00000006"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in ("disturbing", "draws", "judging", "loops"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of one run, started twice."""
    folders = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    for folder in folders:
        done = command(TYPED.split(), folder, os.environ, timeout=patience(120))
        assert done.returncode == 0, done.stderr
    return folders[0] / "run", folders[1] / "run"


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return a function that changes the content of a file, and its digest in a checkpoint."""

    def apply(run: Path) -> None:
        path = run / name
        if path.suffix == ".pt":
            content = torch.load(path, weights_only=True)
            change(content)
            torch.save(content, path)
        else:
            content = json.loads(path.read_text())
            change(content)
            path.write_text(json.dumps(content))
        if (manifest := path.with_name("manifest.json")).exists():
            digests = json.loads(manifest.read_text())
            digests["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            manifest.write_text(json.dumps(digests))

    return apply


def edit_lines(change: Callable[[list[str]], Any]) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        change(lines)
        (run / "metrics.jsonl").write_text("".join(lines))

    return apply


def remove(name: str) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def add(*keys: Any, by: float = 1, times: float = 1) -> Callable[[Any], None]:
    """Return a function that changes a number, or the first of a tensor, in nested content."""

    def apply(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        value = content[keys[-1]]
        if isinstance(value, torch.Tensor):
            value.view(-1)[0] += by
        else:
            content[keys[-1]] = value * times + by * (times == 1)

    return apply


def fill_nan(weights: dict[str, torch.Tensor]) -> None:
    for value in weights.values():
        value.fill_(torch.nan)


def first(*keys: str) -> Callable[[Any], None]:
    """Return a function that changes the first value in what stands at the keys."""

    def apply(content: Any) -> None:
        for key in keys:
            content = content[key]
        while not isinstance(content, torch.Tensor):
            content = next(iter(content.values() if isinstance(content, dict) else content))
        content.view(-1)[0] += 1

    return apply


def swap(lines: list[str]) -> None:
    lines[0], lines[1] = lines[1], lines[0]


MUTATIONS: dict[str, Callable[[Path], None]] = {
    "weights": edit("weights.pt", first()),
    "residual": edit(f"{END}/worker-00001.pt", first("state")),
    "momentum": edit(f"{END}/shared.pt", first("optimizer", "state")),
    "rate": edit(f"{END}/shared.pt", add("optimizer", "param_groups", 0, "lr")),
    "step": edit(f"{END}/shared.pt", add("step")),
    "exchanges": edit(f"{END}/shared.pt", add("exchanges")),
    "meter": edit(f"{END}/worker-00000.pt", lambda c: c.update(meter=[])),
    "samples": edit(f"{END}/shared.pt", add("samples", 0, "relative")),
    "the step of the last log line": edit(f"{END}/shared.pt", add("logged", by=-1)),
    "an older checkpoint": edit(f"{OLDER}/shared.pt", first("model")),
    "an older checkpoint gone": remove(OLDER),
    "a damaged older checkpoint": remove(f"{OLDER}/worker-00000.pt"),
    "lines lost": edit_lines(lambda lines: lines.pop(3)),
    "a line twice": edit_lines(lambda lines: lines.insert(3, lines[3])),
    "lines swapped": edit_lines(swap),
    "the table": lambda run: (run / "metrics.csv").write_text("step\n"),
    "scores": edit("result.json", add("test", "accuracy")),
    "bits": edit("result.json", add("bits_sent", "per_worker")),
    "status": edit("result.json", lambda c: c.update(status="failed")),
    "gradients gone": remove("gradients"),
    "start.json gone": remove("start.json"),
    ".hydra gone": remove(".hydra"),
    "a stray file": lambda run: (run / "result.json.new").touch(),
    "samples per second": edit("result.json", add("samples_per_second", times=1000)),
    "memory": edit("result.json", add("peak_mib", times=1000)),
    "seconds of a step": edit("result.json", add("seconds", "step", "mean", times=1000)),
    "negative seconds": edit("result.json", add("seconds", "step", "max", times=-1)),
}
OF_BOTH = {
    "both without weights": remove("weights.pt"),
    "both with weights of NaN": edit("weights.pt", fill_nan),
    "both stopped early": edit("result.json", add("steps", by=-1)),
}


def test_two_runs_of_the_same_are_equal(pair: tuple[Path, Path]) -> None:
    from judging import differences

    assert differences(*pair) == []


@each("name", [*MUTATIONS, *OF_BOTH])
def test_whatever_a_fault_may_change_is_noticed(
    pair: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    from judging import differences

    copies = [shutil.copytree(run, tmp_path / name / run.parent.name) for run in pair]
    for copy in copies[name in MUTATIONS :]:
        (MUTATIONS | OF_BOTH)[name](copy)
    assert differences(*copies)


def test_checkpoints_where_a_signal_came_are_no_difference(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    from judging import differences

    other = shutil.copytree(pair[1], tmp_path / "run")
    moved = (other / OLDER).rename(other / "checkpoints/step-00000005")
    assert differences(pair[0], other) == []
    (moved / "shared.pt").write_bytes(b"")
    assert "shared.pt is not what its manifest says" in differences(pair[0], other)[0]


def interrupt(run: Path) -> None:
    edit("result.json", lambda c: c.update(status="interrupted", reason="by SIGTERM"))(run)


def fail(reason: str) -> Callable[[Path], None]:
    return edit("result.json", lambda c: c.update(status="failed", reason=reason))


def interrupt_without_checkpoint(run: Path) -> None:
    interrupt(run)
    remove(END)(run)


def interrupt_before_a_checkpoint(run: Path) -> None:
    edit("result.json", lambda c: c.update(status="interrupted", reason="", steps=None))(run)


def leave(run: Path) -> None:
    """Leave a run as it is."""


TRACEBACK = 'Traceback (most recent call last):\n  File "{}", line 1, in <module>\nValueError: x\n'
OURS = TRACEBACK.format("gcbench/runner/train/loop.py")
LOGGED = f"--- Logging error ---\n{TRACEBACK.format('logging/__init__.py')}\nMessage: 'x'\n"
OF_THREAD = "Exception in thread Thread-1:\n" + TRACEBACK.format("tensorboard/writer.py")
OF_OUR_THREAD = "Exception in thread Thread-1:\n" + TRACEBACK.format("gcbench/x.py")
FULL = os.strerror(errno.ENOSPC)
# What was sent to whom, the exit code, what was said, and what became of the run: as it should be.
TOLD: list[tuple[str, str, int, str, Callable[[Path], None]]] = [
    ("disk write", "", 1, "", fail(FULL)),
    ("disk write", "", 0, LOGGED, leave),
    ("disk write", "", 0, OF_THREAD, leave),
    ("clock 3600", "", 0, "", leave),
    ("signal KILL", "worker 1", 1, "worker 1 failed: killed by SIGKILL", fail("x")),
    ("signal STOP+KILL", "worker 1", 1, "", fail("worker 1: killed by SIGKILL")),
    ("signal KILL", "parent", -9, "", interrupt),
    ("signal TERM", "parent", -15, "", interrupt),
    ("signal INT", "worker 0", 130, "", interrupt),
    ("signal INT+INT", "all", 130, "", interrupt_before_a_checkpoint),
]
NOT_TOLD: list[tuple[str, str, int, str, Callable[[Path], None]]] = [
    ("disk write", "", 1, "", fail("something")),
    ("disk write", "", 0, OURS + "here in thread", leave),
    ("disk write", "", 0, OF_OUR_THREAD, leave),
    ("disk write", "", 0, OF_THREAD + OURS, leave),
    ("disk write", "", 0, LOGGED + OURS, leave),
    ("disk write", "", 0, "", edit("result.json", add("steps", by=-1))),
    ("disk write", "", 0, "", remove("start.json")),
    ("disk write", "", 0, "", remove("gradients/step-000005.pt")),
    ("clock 3600", "", 1, "", fail("x")),
    ("clock -3600", "", 0, "", edit("result.json", add("seconds", "step", "mean", times=-1))),
    ("link tbf", "", 1, "", fail("x")),
    ("signal STOP+CONT", "worker 1", 1, "", fail("x")),
    ("signal KILL", "worker 1", 1, "", fail("worker 0: killed by SIGKILL")),
    ("signal KILL", "parent", -9, "", fail("x")),
    ("signal KILL", "parent", 1, "", interrupt),
    ("signal SEGV", "all", -11, "", interrupt),
    ("signal TERM", "parent", 0, "", interrupt),
    ("signal TERM", "parent", -15, "", interrupt_without_checkpoint),
    ("signal TERM", "all", 130, "", interrupt_before_a_checkpoint),
]


@each(
    ("right", "sent", "victim", "code", "said", "change"),
    [(right, *ending) for right, endings in ((1, TOLD), (0, NOT_TOLD)) for ending in endings],
)
def test_an_ending_is_right_or_not(
    pair: tuple[Path, Path],
    tmp_path: Path,
    right: bool,
    sent: str,
    victim: str,
    code: int,
    said: str,
    change: Callable[[Path], None],
) -> None:
    from disturbing import Fault
    from judging import Ending, Seen, unexplained

    run = shutil.copytree(pair[0], tmp_path / "run")
    change(run)
    fault = Fault(*sent.split(), error=errno.ENOSPC)
    problem = unexplained(fault, victim, Ending(code, said, Seen({}, 0)), run)
    shutil.rmtree(run)
    assert (problem is None) == right, problem


# What a night of draws has to have, in what is typed.
DRAWN = {
    *(f"exchange={one}" for one in "gather scatter scatter_coded ring sum hierarchical".split()),
    *("adapt_every=10", "rotate=hadamard", "bits=8", "code=ans", "error_feedback=loco"),
    *("clip_norm=0.4", "clip_sigma=2.5", "dense_steps=5", "bucket_scope=gradient"),
    *("estimator=svrg", "estimator=zero_one_adam", "estimator.pattern=strided"),
    *("estimator.delay=2", "estimator.mixing=0.5"),
    *("trainer.overlap=true", "trainer.overlap=auto", "trainer.double_buffering=true"),
    "network=emulated",
    *("trainer.codec_backend=compiled", "trainer.codec_backend=auto", "trainer.max_restarts=1"),
    *("trainer.record_gradients=[0,60]", "trainer.target=50", "trainer.precision=bf16"),
    *("optimizer=muon", "schedule=linear", "logger=tensorboard", "logger=wandb", "logger=csv"),
    *("compress", "comm_hook", "overlap", "local_steps", "late_steps", "-m", "tune"),
}


def test_every_kind_of_run_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    import draws

    monkeypatch.setattr(draws, "fits", lambda typed: True)
    typed = {word for seed in range(1000) for word in draws.draw_job(Random(seed)).typed}
    assert not DRAWN - typed
    assert {f"compressor={name}" for name in method_keys()} <= typed


@pytest.mark.parametrize("seeds", slow_but([3], [3, 400]))
def test_what_is_drawn_composes(seeds: int) -> None:
    from draws import COMMON, draw_run, fits

    found = set()
    for seed in range(seeds):
        typed = draw_run(Random(seed))
        assert fits(typed), typed
        found.update(typed)
    least = {word for word in DRAWN if "=" in word} if seeds > 100 else set(COMMON.split())
    assert not least - found


@pytest.mark.slow
def test_a_few_faults_lose_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "faults"), "--faults", "8"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(1200),
    )
    assert done.returncode == 0 and ", 0 wrong" in done.stdout, done.stdout + done.stderr
