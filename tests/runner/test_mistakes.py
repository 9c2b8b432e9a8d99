"""Every mistake of mistakes.yaml is refused by one sentence, before anything starts."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import gcbench
from gcbench.core.errors import ConfigError
from gcbench.runner.launch import start

ROOT = Path(__file__).parents[2]
GROUPS = yaml.safe_load((ROOT / "tests" / "mistakes.yaml").read_text(encoding="utf-8"))


def by_python(words: list[str]) -> str:
    """Return the error of a run that a script starts, which takes a tenth of a command's time."""
    with pytest.raises(ConfigError) as error:
        gcbench.run(*words)
    return f"gcbench.run: {error.value}"


def by_script(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    script, *arguments = words
    monkeypatch.setattr("sys.argv", [script, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    printed = capsys.readouterr().err  # by argparse
    return ended.value.code if isinstance(ended.value.code, str) else last_line(printed)


def train(*_: object) -> None:
    """Take the place of what trains, which would take minutes where a mistake is not refused."""
    raise AssertionError("this was not refused")


def last_line(printed: str) -> str:
    return printed.removesuffix("\n").rpartition("\n")[2]


@pytest.mark.parametrize("group", GROUPS)
def test_mistakes_are_answered_in_one_sentence(
    group: str,
    typed: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sentence is the last line that is printed; "…" in the table stands for any text."""
    monkeypatch.chdir(tmp_path)
    for name in ("work", "run_processes"):
        monkeypatch.setattr(start, name, train)
    wrong, allowed = [], {tmp_path / "outputs" / "multirun.yaml"}
    for words, expected in GROUPS[group]["mistakes"].items():
        case = {"says": expected} if isinstance(expected, str) else expected
        for name, text in case.get("files", {}).items():
            allowed.add(file := tmp_path / name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        own = shlex.split(words)
        keys = {word.partition("=")[0] for word in own if "=" in word}
        command, *shared = shlex.split(GROUPS[group]["command"])
        arguments = [*(one for one in shared if one.partition("=")[0] not in keys), *own]
        while "=" in command:
            monkeypatch.setenv(*command.split("="))
            command, *arguments = arguments
        stdout = ""
        if command == "gcbench.run":
            answer = by_python(arguments)
        elif command == "gcbench":
            status, stdout, stderr = typed(*arguments)
            answer = last_line(stderr)
            assert status == 1 and "Traceback" not in stderr, f"{words}: {stderr}"
        else:
            answer = by_script([command, *arguments], monkeypatch, capsys)
        sentence = ".*".join(map(re.escape, case["says"].split("…")))
        if stdout or "\x1b" in answer or not re.fullmatch(f"[^:]*: {sentence}", answer):
            wrong.append(f"{words}\n    {answer}\n    {case['says']}")
        empty = {path for path in tmp_path.rglob("*") if path.is_dir() and not any(path.iterdir())}
        left = ({path for path in tmp_path.rglob("*") if path.is_file()} | empty) - allowed
        assert not left, f"{words} leaves {left}"
    assert not wrong, "\n".join(wrong)
