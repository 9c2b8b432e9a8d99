"""Results, names, caches and folders of others run no code; bad ones are named and skipped."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import markdown_it
import pytest
from nightly import slow_but
from processes import command
from results import result_of, write
from sentence import config_of

from gcbench.core.errors import ConfigError
from gcbench.papers.claims.claims_report import claims
from gcbench.papers.tables.report import report, tables
from gcbench.runner.console import TextTable, show_table
from gcbench.runner.launch.same import read_result_or_warn
from gcbench.runner.predict.command import predict_steps
from gcbench.runner.records.files import printable
from gcbench.runner.records.schema import PHASES
from gcbench.runner.records.store import find_runs
from gcbench.runner.report.command import runs

SGD = "powersgd/table4/sgd"
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def forge(target: str, **arguments: Any) -> dict[str, Any]:
    result = result_of(SGD)
    config = {**result["config"], "model": {"_target_": target, **arguments}}
    seconds = {phase: {"mean": 0.1, "max": 0.1} for phase in PHASES}
    return {
        **result,
        "config": config,
        "network": {"emulated": False, "link": "1gbit"},
        "seconds": seconds,
    }


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("os.mkdir", {"path": "ran"}),
        ("gcbench.runner.models.mlp.MLP", {"widths": [{"_target_": "os.mkdir", "path": "ran"}]}),
        ("gcbench.runner.models.mlp.MLP", {"widths": "${oc.create:{_target_:os.mkdir,path:ran}}"}),
    ],
)
def test_a_result_chooses_no_code_to_run(
    target: str, arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("run"), forge(target, **arguments))
    with pytest.raises(ConfigError, match="run: it has counted no exchange"):
        predict_steps(["compare", "run"])
    bits = {f"{kind}_bits": 8.0 for kind in ("sent", "received", "wire")}
    counted = {"level": "between", "collective": "all_reduce", "workers": 2, "messages": 1, **bits}
    write(Path("two"), forge(target, **arguments) | {"collectives": [counted]})
    predict_steps(["compare", "two"])
    assert "measured / predicted" in capsys.readouterr().out and not Path("ran").exists()


def forge_config(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = result_of(SGD)["config"]
    return {**config, **changes}


BAD: dict[str, str] = {
    "empty": "",
    "torn": '{"schema_version": 1, "status"',
    "deep": "[" * 100_000,
    "deep object": '{"a":' * 300 + "1" + "}" * 300,
    "list": "[1, 2]",
    "null": "null",
    "latin": "\udcff",
}
CHANGES: dict[str, dict[str, Any]] = {
    "status": {"status": 3},
    "no config": {"config": None},
    "choices": {"choices": ["mlp"]},
    "time": {"finished": "yesterday"},
    "seconds": {"seconds": {"step": 3}},
    "test": {"test": {"accuracy": "high"}},
    "steps": {"steps": "many"},
    "reason": {"reason": {"a": 1}},
    "experiment": {"experiment": 7},
    "version": {"schema_version": [1]},
    "bits": {"bits_sent": [1]},
    "trainer": {"config": {"seed": 1, "trainer": {}}},
    "phase": {"seconds": {"step": {"mean": 0.1, "max": 0.1}}},
    "target": {"config": forge_config(model={"_target_": 3})},
    "inner target": {"config": forge_config(network={"a": [{"_target_": None}]})},
    "name": {"config": forge_config(name=3)},
}


@pytest.fixture
def some_bad(here: Path) -> list[str]:
    """Return good results with bad ones among them."""
    write(Path("outputs/good-s1"), result_of(SGD))
    write(Path("outputs/good-s2"), result_of(SGD, seed=2))
    for name, text in BAD.items():
        folder = Path("outputs", f"bad {name}")
        folder.mkdir()
        (folder / "result.json").write_text(text, errors="surrogateescape")
    for name, change in CHANGES.items():
        folder = Path("outputs", f"bad {name} changed")
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps({**result_of(SGD), **change}))
    return sorted(path.name for path in Path("outputs").glob("bad*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["tables"],
        ["table=powersgd/table4"],
        pytest.param(["claims", "paper=powersgd"], marks=pytest.mark.slow),
        ["diff", "outputs", "outputs"],
    ],
)
def test_bad_results_among_good_ones_are_named_and_skipped(
    some_bad: list[str],
    arguments: list[str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level("WARNING", "gcbench"):
        others = {"runs": runs, "tables": tables, "claims": claims}
        others.get(arguments[0], report)(arguments[arguments[0] in others :])
    assert capsys.readouterr().out
    named = {
        line.split("outputs/")[1].split("/")[0]
        for line in caplog.messages
        if line.startswith("not read: ")
    }
    assert sorted(named) == some_bad


def test_the_good_ones_are_all_there(some_bad: list[str]) -> None:
    assert [run.seed for run in find_runs(["outputs"]).runs] == [1, 2]


def test_a_sweep_passes_over_bad_results(
    some_bad: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    from gcbench.runner.launch.estimate import Estimates

    with caplog.at_level("WARNING", "gcbench"):
        read_results = [
            read_result_or_warn(path) for path in sorted(Path("outputs").rglob("result.json"))
        ]
    assert len([result for result in read_results if result]) == 2
    assert len(caplog.messages) == len(some_bad)
    Estimates(filter(None, read_results)).seconds(config_of())


def test_a_studys_file_that_is_none(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("outputs").mkdir()
    for text in ("[" * 100_000, "null", '{"study": "communication_times", "rows": [3]}'):
        Path("outputs/communication_times.json").write_text(text)
        report(["table=orq/table1"])
        assert "not read: " in caplog.text
        assert "communication_times.json: not a study of gcbench" in caplog.text


@pytest.mark.parametrize(
    "text",
    slow_but(["[" * 100_000], ["null", '{"schema_version": 1}', "[" * 100_000]),
    ids=lambda text: text[:16],
)
def test_a_result_that_is_none_in_the_runs_own_folder(here: Path, text: str) -> None:
    (here / "run").mkdir()
    (here / "run" / "result.json").write_text(text)
    done = command(("directory=run", "trainer.max_steps=2"), here, dict(os.environ), timeout=100)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "run/result.json" in done.stderr and "move it away, or type rerun=true" in done.stderr


def test_a_terminal_is_given_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m\r"
    write(Path("outputs/run"), result_of(SGD, status="failed", reason=f"out of{evil}memory"))
    runs([])
    report(["table=powersgd/table4", "verbose=true"])
    output = capsys.readouterr().out
    assert "out of" in output and not set(output) & set(evil) - set("]0;title[2J31m")
    assert printable("line\n\ttab \u00e9") == "line\n\ttab \u00e9"


FORMULA = "=cmd|' /C calc'!A0"


def test_a_spreadsheet_is_given_no_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    names = [FORMULA, "+1+1", "-1+1", "@SUM(A1)"]
    for i, name in enumerate(names, start=1):
        result = result_of(SGD, seed=i, status="failed", reason=name)
        result["config"] |= {FORMULA: name, "name": name}
        write(Path(f"{name.replace('/', ' ')}/x"), result)
    runs(["format=csv", "."])
    text = capsys.readouterr().out
    head, *rows = csv.reader(io.StringIO(text))
    assert len(rows) == len(names)
    cells = {cell for row in (head, *rows) for cell in row}
    assert {f"'{name}" for name in names} <= cells
    assert not [cell for cell in cells if cell[:1] in tuple("=+-@\t\r") and len(cell) > 1]


def test_numbers_stay_numbers_in_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["-1.5", "+3", "-", "-1e-05", "+1,234.5", "a=b"]]
    show_table(TextTable(["x"] * 6, rows), "csv")
    assert capsys.readouterr().out.splitlines()[1] == '-1.5,+3,-,-1e-05,"+1,234.5",a=b'


def test_a_page_is_given_no_html_and_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<script>alert(1)</script> ![](http://x/y.png) a|b\n# title\n<!-- `<b>`"
    result = result_of(SGD, status="failed", reason=evil)
    result["config"] |= {"name": evil}
    write(Path("outputs/run"), result)
    for arguments in (["runs"], ["report", "table=powersgd/table4"]):
        {"runs": runs, "report": report}[arguments[0]]([*arguments[1:], "format=markdown"])
        page = capsys.readouterr().out
        assert "alert(1)" in page and "\n# title" not in page
        html = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
        assert not re.search("<(script|img|b>|!--)|<a ", html), html
        assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    "name",
    slow_but(["../escape", "a\x1bb"], ["..", ".", "-rf", "../escape", "a/b", "a\nb", "a\x1bb"]),
)
def test_a_name_that_is_no_folder_is_refused_before_any_is_made(here: Path, name: str) -> None:
    done = command((f"name='{name}'",), here, dict(os.environ), timeout=100)
    assert done.returncode == 1 and done.stderr.startswith(
        f"gcbench: name={name!r}: type a name"
    ), done.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_cluster_in_a_folder_that_others_could_make_is_refused(here: Path, kind: str) -> None:
    folder = here / "cluster"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o755)
    else:
        (here / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(here / "elsewhere")
    (folder / "slurm.conf").write_text("PluginDir=/tmp")
    environment = {**os.environ, "GCBENCH_CLUSTER": str(folder)}
    for action in ("up", "status", "down"):
        done = subprocess.run(
            [sys.executable, SCRIPTS / "cluster", action],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 1 and "is not a folder that only" in done.stderr, done.stderr
    assert (folder / "slurm.conf").exists()
