"""A table of text on a terminal, in a pipe, and as markdown, csv and LaTeX."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console

from gcbench.runner.console import (
    TextTable,
    latex,
    markdown,
    print_table,
    show_table,
    width_of,
    with_bar,
)

LONG = "a method that takes many words to say what it is " * 50
TABLE = TextTable(
    headings=["method", "bits (fewer is better)"],
    rows=[["none", "1,234,567,890"], ["50 % | ~x~", "7"], [LONG, ""]],
    groups=["dense", "sparse", "sparse"],
    title="A [title]",
    notes=["one note, [b]not bold[/b]"],
)


def test_a_pipe_gets_a_line_a_row_and_no_blanks_at_line_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert sum(LONG.strip() in line for line in lines) == 1
    assert sum(line.endswith("1,234,567,890") for line in lines) == 1
    assert all(line == line.rstrip() for line in lines)
    assert lines[0] == "A [title]" and lines[-1] == "one note, [b]not bold[/b]"


def test_a_terminal_gets_lines_of_its_width() -> None:
    output = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    print_table(TABLE, output)
    assert isinstance(output.file, io.StringIO)
    lines = output.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 40 and len(lines) > len(LONG) / 40
    assert any("1,234,567,890" in line for line in lines)


def test_paths_are_never_folded() -> None:
    paths = [f"outputs/{'very_long_' * 8}{number}" for number in (1, 2)]
    rows = [["a method with a long name and many knobs", path] for path in paths]
    table = TextTable(["what", "run"], rows, left=(0, 1), below=1)
    output = Console(file=io.StringIO(), width=30, force_terminal=True, color_system=None)
    print_table(table, output)
    assert isinstance(output.file, io.StringIO)
    lines = output.file.getvalue().splitlines()
    assert [line.strip() for line in lines if "outputs/" in line] == paths
    assert lines.index(f"   {paths[0]}") < lines.index(f"   {paths[1]}") and "run" not in lines[1]


def test_a_space_parts_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TABLE)
    lines = [line.strip()[:4] for line in capsys.readouterr().out.splitlines()]
    first = lines.index("none")
    assert lines[first : first + 4] == ["none", "", "50 %", "a me"]
    assert TextTable(["a"], []).group_ends == []


def test_words_stand_left_and_numbers_right() -> None:
    short = replace(TABLE, rows=TABLE.rows[:2])
    assert markdown(short).splitlines() == [
        "| method        | bits (fewer is better) |",
        "| ------------- | ---------------------: |",
        "| none          |          1,234,567,890 |",
        r"| 50 % \| \~x\~ |                      7 |",
    ]
    assert width_of(short) == len(markdown(short).splitlines()[0])
    assert latex(TABLE).splitlines()[0] == r"\begin{tabular}{lr}"


def test_latex_escapes_and_parts_the_groups() -> None:
    lines = latex(TABLE).splitlines()
    assert r"50 \% | \textasciitilde{}x\textasciitilde{} & 7 \\" in lines
    assert lines.count(r"\midrule") == 2 and lines[-1] == r"\end{tabular}"


def test_csv_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(TABLE, "csv")
    read = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert read == [list(TABLE.headings), *TABLE.rows]


def test_a_bar_shows_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, shown in ((False, False), (True, True)):
        monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv(
            "FORCE_COLOR", raising=False
        )
        assert list(with_bar([1, 2], "tables")) == [1, 2]
        said = capsys.readouterr()
        assert ("tables" in said.err) == shown and said.out == ""
