"""`scripts/gpu_evidence` measures in order of value, keeps each line at once, and goes on later."""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from lib.lines import Lines
from lib.precompile import calls_of
from needed import lacks, patience
from processes import Copy, code
from results import result_of, write

from gcbench.core.errors import ConfigError
from gcbench.runner.records.store import find_runs

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_evidence"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module, in a folder without results."""
    monkeypatch.chdir(tmp_path)
    loader = importlib.machinery.SourceFileLoader("gpu_evidence", str(SCRIPT))
    spec = importlib.util.spec_from_loader("gpu_evidence", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_evidence", module)
    loader.exec_module(module)
    return module


@pytest.fixture
def typed(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["scripts/gpu_evidence", *arguments])
        script.main()

    return run


def names_in(folder: Path) -> list[str]:
    lines = (folder / "results/gpu.jsonl").read_text().splitlines()
    return [json.loads(line)["name"] for line in lines]


def items(script: ModuleType, **rows: Any) -> list[Any]:
    return [script.Item(f"codecs/{name}/1", 1, made) for name, made in rows.items()]


def fails() -> Iterator[Any]:
    yield {"part": "encode", "milliseconds": 1.0, "x": 2.0}
    raise RuntimeError("out of registers")


def test_lines_are_kept_at_once_and_what_failed_or_was_cut_off_is_tried_again(
    script: ModuleType, typed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def sees_the_others() -> list[Any]:
        assert names_in(Path("first")) == ["codecs/good/1", "codecs/bad/1"]
        while True:
            pass

    good = [{"part": "encode", "milliseconds": 0.5, "x": 4.0}]
    todo = items(script, good=lambda: good, bad=fails, endless=sees_the_others)
    monkeypatch.setattr(script, "list_items", lambda place: todo)
    typed(
        "--dry-run", "--out", "first", "--minutes", str(patience(3) / 60)
    )  # returns although one is endless
    assert names_in(tmp_path / "first") == ["codecs/good/1", "codecs/bad/1"]
    with (tmp_path / "first/results/gpu.jsonl").open("a") as file:
        file.write('{"name": "codecs/')  # the machine went away while it wrote
    todo[1:] = items(script, bad=lambda: good, endless=lambda: good)
    typed("--dry-run", "--out", "second", "--resume", "first", "--minutes", "1")
    names = ["codecs/good/1", "codecs/bad/1", "codecs/bad/1", "codecs/endless/1"]
    assert names_in(tmp_path / "second") == names
    page = (tmp_path / "second/tables/studies/gpu.md").read_text()
    assert "## CPU" in page and "out of registers" not in page
    assert [line.split()[1:-1:2] for line in page.splitlines() if "codecs/" in line] == [
        [f"codecs/{name}/1", "encode", "0.500", "4.00"] for name in ("good", "bad", "endless")
    ]
    typed("--dry-run", "--out", "second", "--resume", "first", "--minutes", "1")
    assert names_in(tmp_path / "second") == names  # nothing is left


def test_the_clock_starts_after_kernels_were_compiled(
    script: ModuleType, typed: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    compiled: list[Any] = []

    def compile_all(todo: list[Any]) -> Iterator[str]:
        compiled.extend(todo)
        time.sleep(0.5)
        yield "qsgd: no ptxas"

    monkeypatch.setattr(script, "choose_codec_backend", lambda *_: "compiled")
    monkeypatch.setattr(script, "compile_all", compile_all)
    monkeypatch.setattr(script, "measure_all", lambda _, place: print(place.left()))
    typed("--dry-run", "--out", "one", "--minutes", "1")
    said, left = capsys.readouterr().out.splitlines()
    assert said.endswith("not compiled: qsgd: no ptxas") and 59.5 < float(left) <= 60
    assert compiled[:2] == [
        ("qsgd", script.QSGD, 10_000, 16),
        ("powersgd", {"rank": 2}, 10_000, 16),
    ]


def test_kernels_of_a_measurement_are_known_before_it() -> None:
    names = Counter(call.name for call in calls_of("qsgd", {}, 20_000, 16))
    # One adds a message, and two average those of one worker and of all.
    assert names == {"_mix": 1, "code_buckets": 1, "join_digits": 1, "decode_buckets": 3}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_time_is_over_also_where_python_swallows_the_first_alarm(
    script: ModuleType, typed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback of the garbage collector runs when it comes, as hypothesis has one."""
    alarms: list[float] = []
    stop = script.stop

    def note(*of_signal: object) -> None:
        alarms.append(time.monotonic())
        stop(*of_signal)

    def wait_for_the_first_alarm(phase: str, info: object) -> None:
        while phase == "stop" and not alarms:
            pass

    def endless() -> list[Any]:
        gc.collect()
        while True:
            pass

    monkeypatch.setattr(script, "AGAIN", 0.5)
    monkeypatch.setattr(script, "stop", note)
    monkeypatch.setattr(script, "list_items", lambda place: items(script, endless=endless))
    gc.callbacks.append(wait_for_the_first_alarm)
    try:
        typed("--dry-run", "--out", "one", "--minutes", str(1 / 60))
    finally:
        gc.callbacks.remove(wait_for_the_first_alarm)
    assert len(alarms) == 2


def test_what_failed_may_count_as_measured(
    script: ModuleType, typed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So a process that takes over from one that an illegal access has cut off from the GPU."""
    monkeypatch.setattr(script, "list_items", lambda place: items(script, bad=fails))
    for more in ((), ("--keep-failed",), ()):
        typed("--dry-run", "--out", "one", "--minutes", "1", *more)
    assert names_in(tmp_path / "one") == ["codecs/bad/1"] * 2
    assert "RuntimeError: out of registers" in (tmp_path / "one/tables/studies/gpu.md").read_text()


def test_a_line_after_one_that_was_cut_off_can_be_read(tmp_path: Path) -> None:
    Lines(tmp_path).add("GPU", "tests", 1, [{"said": "3 passed"}], None)
    with (tmp_path / "results/gpu.jsonl").open("a") as file:
        file.write('{"name": "codecs/')
    Lines(tmp_path).add("GPU", "codecs/qsgd/1", 1, [], None)
    assert [name for _, name in Lines(tmp_path).lines] == ["tests", "codecs/qsgd/1"]


def test_what_comes_first_and_what_a_run_is(script: ModuleType) -> None:
    """Without this test a mistake would be found only on the machine with the GPU."""
    for dry in (False, True):
        place = script.Place(Namespace(dry_run=dry, minutes=None, out=None, resume=None))
        todo = [*script.list_items(place)]
        names = [item.name for item in todo]
        kinds = [*dict.fromkeys(name.partition("/")[0] for name in names)]
        assert len({*names}) == len(names) and kinds == ["codecs", "steps", "tests", "training"]
        methods = [name.split("/")[1] for name in names if name.startswith("codecs/")]
        assert methods[:4] == ["qsgd", "powersgd", "scaled_sign", "top_k"]
        assert names[-1].startswith("codecs/") and len({*methods}) > 30
        for item in todo:
            if item.overrides and item.name.endswith("/1"):  # the first seed's
                config, directory = script.resolve_overrides(item.overrides)
                assert directory.startswith("outputs/gpu-runs/cpu/powersgd/table")
                assert dry or config.trainer.epochs == 18.75
        if not dry:
            runs = [name.removeprefix("training/") for name in names if "training/" in name]
            assert runs[:5] == [
                *(f"table3_cifar10/{row}/1" for row in ("sgd", "rank_2", "rank_1", "rank_4")),
                "table3_cifar10/sgd/2",
            ]
            assert len(runs) == 42 and runs[12] == "table4/rank_7/1"


ONLY = """
import sys
from importlib.machinery import SourceFileLoader
script = SourceFileLoader("gpu_evidence", {script!r}).load_module()
every = script.list_items
script.list_items = lambda place: [i for i in every(place) if i.name in {names}]
sys.argv = ["gpu_evidence", "--dry-run", "--out", "one", "--minutes", "{minutes}"]
script.main()
"""


@pytest.mark.slow
def test_codecs_and_steps_are_measured_in_one_process(tmp_path: Path) -> None:
    names = ["codecs/qsgd/10000", "steps/resnet8/compress qsgd"]
    names += ["steps/gpt_tiny/torch powerSGD_hook"]
    text = ONLY.format(script=str(SCRIPT), names=names, minutes=patience(2))
    # In a process of its own, as steps leave threads behind, after which none may be forked.
    with Copy(code, text, folder=tmp_path, environment=os.environ) as copy:
        ended = copy.wait(patience(120))
    assert ended.returncode == 0, ended.stderr
    lines = Lines(tmp_path / "one").lines
    assert {name: line["error"] for (_, name), line in lines.items()} == dict.fromkeys(names)
    parts = [row["part"] for row in lines["CPU", names[0]]["rows"]]
    assert parts == ["encode", "decode-and-add", "aggregate", "aggregate, 16 workers"]
    assert all(row["milliseconds"] > 0 for line in lines.values() for row in line["rows"])


def test_runs_that_came_back_are_kept(script: ModuleType, typed: Any, tmp_path: Path) -> None:
    result = result_of("powersgd/table3_cifar10/sgd", budget="cpu")
    script.keep_runs(tmp_path / "back", [script.read_run(write(tmp_path / "run", result))])
    Lines(tmp_path / "back").add("H100", "training/table3_cifar10/sgd/1", 9, [], None)
    typed("--resume", "back")
    kept = find_runs([tmp_path / "outputs/results"]).runs
    assert [run.experiment for run in kept] == ["powersgd/table3_cifar10/sgd"]
    assert names_in(tmp_path / "outputs") == ["training/table3_cifar10/sgd/1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--minutes", "0"), "--minutes 0: type minutes above 0"),
        (("--resume", "nowhere"), "--resume nowhere: it has no results/gpu.jsonl"),
        (("--minutes", "1"), "no GPU here; type --dry-run"),
    ],
)
def test_mistakes_are_refused(
    arguments: tuple[str, ...], says: str, typed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=says):
        typed(*arguments)


@pytest.mark.slow
@pytest.mark.timeout(60 * patience(10))
@pytest.mark.skipif(torch.cuda.is_available(), reason=lacks("cpu", "tests would use the GPU"))
def test_the_whole_rehearsal(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dry-run", "--minutes", str(patience(10))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "outputs/gpu-dry-run"
    lines = Lines(folder).lines
    assert {name: line["error"] for (_, name), line in lines.items() if line["error"]} == {}
    assert "skipped" in lines["CPU", "tests"]["rows"][0]["said"]
    trained = find_runs([folder / "results"]).runs
    if (Path(os.environ.get("GCBENCH_DATA", "")) / "cifar-10-batches-py").exists():
        assert len(trained) == 2
    assert sum(file.stat().st_size for file in folder.rglob("*.*") if file.is_file()) < 1 << 20
