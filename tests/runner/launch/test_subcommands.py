"""The first argument of the command chooses what it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from needed import patience
from processes import command
from results import result_of, write

from gcbench.runner.command import main as cli

ENVIRONMENT = {**os.environ, "WANDB_MODE": "offline"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}
KEYS = {"report": "table=", "runs": "results=", "papers claims": "paper="}
KEYS |= {"predict": "network=", "methods": "measure="}

Typed = Callable[..., tuple[int, str, str]]


def test_help_is_a_screen_and_names_every_subcommand(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    status, screen, _ = typed("--help")
    assert status == 0 and screen == typed("-h")[1]
    lines = screen.splitlines()
    assert len(lines) < 40 and max(map(len, lines)) <= 80
    for name in {*cli.SUBCOMMANDS} - {"bench"}:  # whose screen is Hydra's keys
        for words in ([name], *([name, part] for part in cli.SUBCOMMANDS[name].parts)):
            assert max(map(len, typed(*words, "--help")[1].splitlines())) <= 80, words
    monkeypatch.setenv("COLUMNS", "200")
    whole = typed("--help", "all")[1]
    for text in (typed("--help")[1], whole):
        for name, subcommand in cli.SUBCOMMANDS.items():
            assert f"  {name:12}{subcommand.about}" in text.splitlines()
    assert whole.index("Subcommands") < whole.index("Groups")
    assert "$GCBENCH_DATA" in whole and "${" not in whole
    monkeypatch.setenv("COLUMNS", "60")
    folded = typed("--help", "all")[1].split("Examples")[0]
    assert max(len(line) for line in folded.splitlines() if " " in line.strip()) <= 60
    assert folded.split() == whole.split("Examples")[0].split()


def test_help_on_a_group_a_key_or_a_subcommand(typed: Typed) -> None:
    for topic, first, last in (
        ("optimizer", "optimizer   adam", "optimizer.groups="),
        ("compressor", "compressor  acpsgd", "bits=4"),
        ("optimizer.lr", "optimizer.lr=", "optimizer.lr="),
        ("lr", "optimizer.lr=", "optimizer.lr="),
        ("bits=2", "bits=4", "bits=4"),
        ("trainer.workers", "trainer.workers=2", "trainer.workers=2"),
        ("model", "model       mlp", "model       mlp"),
        ("report", "usage: gcbench report", "results="),
    ):
        status, text, stderr = typed("--help", topic)
        assert status == 0 and text.strip().startswith(first) and last in text, text + stderr


def test_a_shell_completes_subcommands_keys_and_choices(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line, completed in {
        "gcbench rep": {"report"},
        "gcbench compressor=pow": {"compressor=powersgd"},
        "gcbench report ta": set(),  # but file names, which the shell adds
        "gcbench report ": set(),
        "gcbench ": {"report", "check"},
        "gcbench c": {"check", "clip_norm=", "compressor"},
        "gcbench papers c": {"claims"},
        "gcbench +experiment/powersgd/table7=": {"+experiment/powersgd/table7=signum"},
    }.items():
        monkeypatch.setenv("COMP_LINE", line)
        status, stdout, stderr = typed("-sc", "query=bash")
        assert status == 0 and not stderr
        assert completed <= set(stdout.split()) and bool(completed) == bool(stdout.split()), line


def test_every_subcommand_has_a_help(typed: Typed, tmp_path: Path) -> None:
    parts = {f"{name} {part}" for name, one in cli.SUBCOMMANDS.items() for part in one.parts}
    assert KEYS.keys() <= {*cli.SUBCOMMANDS, *parts}
    for name in {*cli.SUBCOMMANDS} | parts:
        status, stdout, stderr = typed(*name.split(), "--help")
        assert status == 0 and f"usage: gcbench {name}" in stdout and not stderr
        assert KEYS.get(name, "") in stdout and not list(tmp_path.iterdir())


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


def test_the_version_is_that_of_gcbench(typed: Typed) -> None:
    assert typed("--version")[:2] == (0, f"gcbench {version('gcbench')}\n")


def test_notices_have_the_name_of_the_subcommand(typed: Typed, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "a"
    write(folder, result_of("powersgd/table4/sgd"))
    (folder / "result.json").write_text("{")
    _, _, stderr = typed("runs")
    assert stderr.startswith("gcbench runs: not read: ")


def test_a_rank_of_torchrun_reads_a_report(tmp_path: Path) -> None:
    done = command(
        ("papers", "tables"), tmp_path, {**ENVIRONMENT, **TORCHRUN}, timeout=patience(60)
    )
    assert done.returncode == 0 and "powersgd/table4" in done.stdout, done.stderr


def test_a_benchmark_is_hydras_with_its_sweeps(tmp_path: Path) -> None:
    arguments = (
        *"bench -m compressor=none,bf16 sizes=[1000] draws=[normal] rounds=1".split(),
        "codec_backend=eager",
    )
    done = command(arguments, tmp_path, ENVIRONMENT, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    choices = {
        json.loads(path.read_text())["config"]["choices"]["compressor"]
        for path in tmp_path.glob("outputs/*/bench.json")
    }
    assert choices == {"none", "bf16"}
