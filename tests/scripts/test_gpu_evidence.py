"""`scripts/gpu_evidence` runs commands in order, keeps their output, and can be continued."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from needed import patience
from results import result_of, write

from gcbench.config import ConfigError

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_evidence"
SLEEP = ["timeit", "-n1", "-r1", "import time; time.sleep(60)"]
BENCH = {
    "local": [
        {
            "part": "encode",
            "values": 1000,
            "milliseconds": 0.5,
            "gb_per_second": 8.0,
            "of_memcpy": 0.25,
        }
    ],
    "network": [{"what": "method", "milliseconds": 2.0, "of_dense": 4.0}],
}


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


def typed(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/gpu_evidence", *arguments])
    script.main()


def names_of(folder: Path) -> list[str]:
    lines = (folder / "outputs/gpu-dry-run/gpu.jsonl").read_text().splitlines()
    return [json.loads(line)["name"] for line in lines]


def test_what_ended_is_not_run_again_and_what_was_stopped_is(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = [
        script.Command("tests", "tests", ["timeit", "-n1", "-r1", "pass"], 1),
        script.Command("fails", "tests", ["there_is_no_such_module"], 1),
        script.Command("sleeps", "tests", SLEEP, 1),
    ]
    monkeypatch.setattr(script, "PARTS", {"tests": lambda place: commands})
    minutes = str(patience(6) / 60)
    typed(script, monkeypatch, "--dry-run", "--minutes", minutes)
    assert names_of(tmp_path) == ["tests", "fails", "sleeps"]
    page = (tmp_path / "outputs/gpu-dry-run/gpu.md").read_text()
    assert "per loop" in page  # the last line of the tests' command
    commands[2] = script.Command("sleeps", "tests", ["timeit", "-n1", "-r1", "pass"], 1)
    typed(script, monkeypatch, "--dry-run", "--minutes", minutes)
    assert names_of(tmp_path)[3:] == ["sleeps"]
    capsys.readouterr()
    typed(script, monkeypatch, "--dry-run")
    table = capsys.readouterr().out
    assert "failed after" in table and "No module named there_is_no_such_module" in table
    assert "0 commands to run" in table


def test_tables_are_drawn_from_what_benchmarks_wrote(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("codecs/bench-qsgd-0123", "steps/bench-lstm-qsgd-4567"):
        folder = tmp_path / "outputs/gpu-dry-run" / name
        folder.mkdir(parents=True)
        (folder / "bench.json").write_text(json.dumps(BENCH))
    arguments = ["timeit", "-n1", "-r1", "pass"]
    commands = [
        script.Command(name, name.partition("/")[0], arguments, 1)
        for name in ("codecs/qsgd", "steps/lstm-qsgd")
    ]
    monkeypatch.setattr(script, "PARTS", {"codecs": lambda place: commands, "steps": lambda _: []})
    typed(script, monkeypatch, "--dry-run", "--minutes", str(patience(60) / 60))
    page = re.sub(" +", " ", (tmp_path / "outputs/gpu-dry-run/gpu.md").read_text())
    assert "| qsgd | encode | 1,000 | 0.500 | 8 | 0.250 |" in page
    assert "| lstm | qsgd | qsgd | 2.000 | 4.00 |" in page


def test_every_command_of_the_list_resolves(script: ModuleType) -> None:
    """Without this test a mistake in one would be found only on the machine with the GPU."""
    for dry in (False, True):
        commands = script.list_commands(script.find_place(dry))
        assert len({c.name for c in commands}) == len(commands)
        for command in commands:
            if command.part == "training":
                config, _ = script.resolve_overrides(command.arguments[1:])
                assert dry or config["trainer"]["gpus"] == 16


def test_a_run_with_times_says_how_far_it_came(script: ModuleType) -> None:
    place = script.find_place(True)
    command = next(script.training(place))
    _, directory = script.resolve_overrides(command.arguments[1:])
    write(Path(directory), result_of("powersgd/table3_cifar10/sgd", budget="cpu"))
    assert script.measured(command, place) == {"steps": 10, "status": "done", "accuracy": 90.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("codec",), "codec: no such part; type some of tests codecs steps training"),
        (("--minutes", "0"), "--minutes 0: type minutes above 0"),
    ],
)
def test_mistakes_are_refused(
    arguments: tuple[str, ...], says: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=says):
        typed(script, monkeypatch, *arguments)


def test_without_a_gpu_it_says_what_to_type(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    typed(script, monkeypatch)  # listing needs no GPU
    with pytest.raises(ConfigError, match="no GPU here; type --dry-run"):
        typed(script, monkeypatch, "--minutes", "1")


@pytest.mark.slow
@pytest.mark.timeout(60 * patience(30))  # as long as the list may take
def test_benchmarks_of_the_list_run_on_a_cpu(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed(script, monkeypatch, "--dry-run", "--minutes", str(patience(30)), "codecs", "steps")
    lines = (tmp_path / "outputs/gpu-dry-run/gpu.jsonl").read_text().splitlines()
    records = {record["name"]: record for record in map(json.loads, lines)}
    assert {name: r["said"] for name, r in records.items() if r["code"]} == {}
    assert records["codecs/qsgd"]["measured"]["local"]
    steps = records["steps/resnet8-powersgd"]["measured"]["network"]
    assert [row["what"] for row in steps] == ["method", "dense", "powerSGD_hook"]
