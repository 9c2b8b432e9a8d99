"""The first argument of the command chooses what it starts."""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from needed import patience
from processes import command
from results import result_of, write

from gcbench import cli

ENVIRONMENT = {**os.environ, "WANDB_MODE": "offline"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}
KEYS = {
    "report": "table=",
    "runs": "results=",
    "claims": "paper=",
    "predict": "network=",
    "methods": "measure=",
}

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Return a function that runs `gcbench` in `tmp_path` and returns status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the command sets it for good
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def start(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gcbench", *arguments])
        # The command sets this variable; as it is set here, monkeypatch restores it.
        monkeypatch.setitem(os.environ, "HYDRA_FULL_ERROR", "0")
        # Hydra adds handlers to the root logger, which would go on writing to this test's streams.
        handlers = {log: list(log.handlers) for log in (cli._log, logging.getLogger())}
        try:
            runpy.run_module("gcbench", run_name="__main__", alter_sys=False)
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            for log, before in handlers.items():
                log.handlers[:] = before
            cli._log.propagate = True
        stderr = capsys.readouterr()
        return status, stderr.out, stderr.err

    return start


def test_help_names_every_subcommand(typed: Typed) -> None:
    status, stdout, _ = typed("--help")
    lines = [line.strip() for line in stdout.splitlines()]
    assert status == 0 and stdout == typed("-h")[1]
    for name, subcommand in cli.SUBCOMMANDS.items():
        assert f"{name:10}{subcommand.about}" in lines
    assert (
        stdout.index("Subcommands") < stdout.index("Groups")
        and "$GCBENCH_DATA" in stdout
        and "${" not in stdout
    )


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("gcbench rep", ["report"]),
        ("gcbench compressor=pow", ["compressor=powersgd"]),
        ("gcbench report ta", []),  # but file names, which the shell adds
        ("gcbench report ", []),
        ("gcbench ", ["report", "check"]),
        ("gcbench c", ["claims", "check", "clip_norm=", "compressor"]),
        ("gcbench +experiment/powersgd/table7=", ["+experiment/powersgd/table7=signum"]),
    ],
)
def test_a_shell_completes_subcommands_keys_and_choices(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, line: str, completed: list[str]
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    status, stdout, stderr = typed("-sc", "query=bash")
    assert status == 0 and not stderr
    assert set(completed) <= set(stdout.split()) and bool(completed) == bool(stdout.split())


@pytest.mark.parametrize("name", cli.SUBCOMMANDS)
def test_every_subcommand_has_a_help(typed: Typed, tmp_path: Path, name: str) -> None:
    status, stdout, stderr = typed(name, "--help")
    assert (
        status == 0
        and f"usage: gcbench {name}" in stdout
        and KEYS.get(name, "") in stdout
        and not stderr
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["reprot"],
            "gcbench: reprot: there is no such subcommand; type gcbench report, or key=value for "
            "a run",
        ),
        (
            ["help"],
            "gcbench: help: there is no such subcommand; type gcbench --help, or key=value for a "
            "run",
        ),
        (
            ["xyz"],
            "gcbench: xyz: there is no such subcommand; type gcbench report, runs, claims, "
            "predict, bench, study, ",
        ),
        (["--hlep"], "gcbench: --hlep: there is no such option; type --help"),
        (
            ["--rank", "2"],
            "gcbench: --rank: there is no such option; type rank=VALUE, as keys have no dashes",
        ),
        (
            ["-m", "+experiment/powersgd/table44=glob(*)"],
            "gcbench: +experiment/powersgd/table44=glob(*): this matches no choice; did you mean "
            "+experiment/powersgd/table4=glob(*)?",
        ),
        (
            ["-m", "compressor=glob(qsdg*)"],
            "gcbench: compressor=glob(qsdg*): this matches no choice; type one of acpsgd, atomo",
        ),
        (["bits=2,4"], "gcbench: bits=2,4: several values are a sweep; type gcbench -m bits=2,4"),
        (["bits=range(2,5)"], "gcbench: bits=range(2,5): several values are a sweep; type gcbench"),
        (
            ["-m", "optimizer.lr=interval(1,2)"],
            "gcbench: optimizer.lr=interval(1,2): only a search",
        ),
        (
            ["optimizer.lr=interval(1,2)"],
            "gcbench: optimizer.lr=interval(1,2): only a search tries",
        ),
        (["report", "tabel=x"], "gcbench report: tabel=x: no such key; type table="),
        (
            ["report", "--tabel=x"],
            "gcbench report: unrecognized arguments: --tabel=x; type gcbench report --help",
        ),
        (
            ["report"],
            "gcbench report: nothing was asked for; type table=powersgd/table4, gcbench report "
            "list",
        ),
        (["runs", "nowhere"], "gcbench runs: results=nowhere: there is no such folder"),
        (["claims", "orq"], "gcbench claims: claims orq: claims takes keys only"),
        (["predict", "pay"], "gcbench predict: pay: type pays"),
        (["bench", "bits=11"], "gcbench bench: bits=11: type a whole number from 2 to 8"),
        (["bench", "report"], "gcbench bench: "),
        (["study", "bounds"], "gcbench study: bounds: there is no such study"),
        (["methods", "qsdg"], "gcbench methods: qsdg: there is no such method; type qsgd"),
        (["check"], "gcbench check: nothing was asked for"),
        (
            ["check", "--config-dir", "nowhere", "compressor=mine"],
            "gcbench check: --config-dir nowhere: there is no such folder",
        ),
    ],
)
def test_slips_are_answered_by_the_subcommand(
    typed: Typed, tmp_path: Path, arguments: list[str], says: str
) -> None:
    status, stdout, stderr = typed(*arguments)
    assert status == 1 and not stdout and stderr.startswith(says) and "Traceback" not in stderr, (
        stderr
    )
    assert arguments[0] == "bench" or not list(tmp_path.iterdir())


def test_keys_may_be_on_both_sides_of_an_option(typed: Typed) -> None:
    status, _, stderr = typed("seed=1", "--run", "bits=99")
    assert status == 1 and stderr.startswith("gcbench: bits=99: "), stderr


def test_what_hydra_takes_is_a_run(typed: Typed) -> None:
    for arguments in (
        ["--cfg", "job"],
        ["seed=3", "--cfg", "job"],
        ["~compressor.method", "--cfg", "job"],
    ):
        status, stdout, stderr = typed(*arguments)
        assert status == 0 and "compressor:" in stdout, stderr


def test_the_configuration_that_is_shown_is_the_one_that_runs(typed: Typed) -> None:
    status, stdout, stderr = typed("budget=cpu", "levels=7", "--cfg", "job")
    shown = yaml.safe_load(stdout)
    assert status == 0 and "budget" not in shown, stderr
    assert shown["trainer"]["epochs"] == 5 and (shown["bits"], shown["levels"]) == (4, 7)
    status, _, stderr = typed("bits=99", "--cfg", "job")
    assert status == 1 and stderr.startswith("gcbench: bits=99: type a whole number from")


@pytest.mark.parametrize(
    ("group", "content", "says"),
    [
        ("experiment", "bits: 2", "begin its file with the line # @package _global_"),
        ("experiment", "# @package _global_\nbits: [2", "is not valid YAML"),
        ("experiment", "# @package _global_\ncompressor: qsgd", "- override /compressor: qsgd"),
        (
            "experiment",
            "# @package _global_\ntrainer: {max_stepz: 2}",
            "trainer.max_stepz: no such key, in a file of the configuration; did you mean trainer",
        ),
        (
            "compressor",
            "# @package _global_\ncompressor: {method: {_target_: my.Method}}",
            "compressor has no _target_, which names what it makes",
        ),
    ],
)
def test_slips_in_a_file_of_ones_own_are_refused_before_a_step(
    typed: Typed, tmp_path: Path, group: str, content: str, says: str
) -> None:
    (tmp_path / "own" / group).mkdir(parents=True)
    (tmp_path / "own" / group / "mine.yaml").write_text(content)
    choice = f"{'+' * (group == 'experiment')}{group}=mine"
    status, stdout, stderr = typed("--config-dir", "own", choice, "logger=none")
    assert status == 1 and not stdout and says in stderr.splitlines()[-1], stderr
    assert "Traceback" not in stderr and not list(tmp_path.glob("outputs/*"))


def test_a_broken_file_ends_a_sweep_in_one_sentence(
    typed: Typed, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    for name, content in (("good", "min_size: 0"), ("broken", "bits: [2")):
        text = f"# @package _global_\n{content}"
        (tmp_path / "own" / "experiment" / f"{name}.yaml").write_text(text)
    sweep = ("-m", "+experiment=good,broken", "logger=none", "trainer.launcher=virtual")
    status, stdout, stderr = typed("--config-dir", "own", *sweep)
    assert status == 1 and not stdout
    assert stderr.startswith("gcbench: a file of the configuration is not valid YAML"), stderr
    # Hydra warns of what a callback of ours raises.
    assert not [one for one in recwarn if "Callback" in str(one.message)]


def test_a_configuration_is_shown_of_one_run(typed: Typed, tmp_path: Path) -> None:
    for option, what in (("--cfg", "job"), ("--info", "searchpath")):
        status, stdout, stderr = typed("-m", "compressor=none,qsgd", option, what)
        assert (status, stdout) == (1, "") and not list(tmp_path.iterdir())
        advice = "type it without -m, with one value per key"
        assert stderr == f"gcbench: {option} is for one run; {advice}\n"
    _, _, both = typed("--cfg", "job", "--info", "searchpath")
    assert both == "gcbench: --cfg and --info are two commands; type only one of them\n"


def test_the_version_is_that_of_gcbench(typed: Typed) -> None:
    assert typed("--version")[:2] == (0, f"gcbench {version('gcbench')}\n")


def test_a_refused_run_leaves_nothing(typed: Typed, tmp_path: Path) -> None:
    for overrides in (["bits=four"], ["exchange=ring"], ["model._target_=no.Net"]):
        status, _, stderr = typed(*overrides, "trainer.launcher=virtual")
        assert status == 1, stderr
        assert not [path for path in tmp_path.rglob("*") if path.name != "outputs"], overrides


def test_notices_have_the_name_of_the_subcommand(typed: Typed, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "a"
    write(folder, result_of("powersgd/table4/sgd"))
    (folder / "result.json").write_text("{")
    _, _, stderr = typed("runs")
    assert stderr.startswith("gcbench runs: not read: ")


def test_a_rank_of_torchrun_reads_a_report(tmp_path: Path) -> None:
    done = command(("report", "list"), tmp_path, {**ENVIRONMENT, **TORCHRUN}, timeout=patience(60))
    assert done.returncode == 0 and "powersgd/table4" in done.stdout, done.stderr


def test_a_benchmark_is_hydras_with_its_sweeps(tmp_path: Path) -> None:
    arguments = (
        "bench",
        "-m",
        "compressor=none,bf16",
        "sizes=[1000]",
        "draws=[normal]",
        "rounds=1",
        "codec_backend=eager",
    )
    done = command(arguments, tmp_path, ENVIRONMENT, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    choices = {
        json.loads(path.read_text())["config"]["choices"]["compressor"]
        for path in tmp_path.glob("outputs/*/bench.json")
    }
    assert choices == {"none", "bf16"}
