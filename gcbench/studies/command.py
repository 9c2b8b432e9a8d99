"""The command `gcbench study`, which prints the rows of a study and writes them as json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.text import Text

from gcbench.config import Arguments, ConfigError, read_arguments
from gcbench.console import TextTable, console, print_table
from gcbench.records.environment import describe_environment, now
from gcbench.studies.study import Row, class_of, make_study, study_names


class StudyArguments(Arguments):
    """Measures what the papers' figures and tables need besides training runs."""

    usage = "gcbench study list | NAME [key=value ...]"
    examples = """
gcbench study list                          all studies, and their settings
gcbench study quantizer_bounds seeds=3      one, to outputs/studies/quantizer_bounds.json
"""
    takes_other_keys = True  # the settings of the study


def study(typed: Sequence[str]) -> None:
    """Run the study that was typed, print its rows, and write outputs/studies/<name>.json."""
    arguments = read_arguments(StudyArguments, typed)
    if len(arguments.plain) != 1:
        raise ConfigError(
            f"{' '.join(arguments.plain)}: type list, or a study's name and key=value".removeprefix(
                ": "
            )
        )
    (name,) = arguments.plain
    if name == "list":
        if arguments.others:
            raise ConfigError(
                f"list {arguments.others[0]}: type gcbench study list, or a study's name before "
                "its settings"
            )
        return list_studies()
    chosen, started = make_study(name, arguments.others), now()
    output = console()
    hidden = not output.is_terminal
    try:
        rows = list(track(chosen.rows(), name, console=output, transient=True, disable=hidden))
    except ValueError as error:  # a setting that a method refuses
        raise ConfigError(f"{name}: {error}") from error
    finished = now()
    path = Path(chosen.outputs) / "studies" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "study": name,
        "settings": chosen.settings(),
        "rows": rows,
        "environment": describe_environment().model_dump(),
        "started": started,
        "finished": finished,
    }
    path.write_text(_json(content), encoding="utf-8")
    print_table(_table(name, rows), output)
    output.print(Text(str(path), style="dim"), soft_wrap=True)


def _json(content: dict[str, Any]) -> str:
    """Return json with one line per row, however long its lists are."""
    rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in content["rows"])
    parts = {
        k: f"[\n  {rows}\n ]" if k == "rows" else json.dumps(v, allow_nan=False)
        for k, v in content.items()
    }
    return "{\n" + ",\n".join(f' "{k}": {text}' for k, text in parts.items()) + "\n}\n"


def _table(name: str, rows: Sequence[Row]) -> TextTable:
    """Return the rows as a table without their lists, which are for figures."""
    columns = dict.fromkeys(
        k for row in rows for k, v in row.items() if not isinstance(v, (list, dict))
    )
    texts = [column for column in columns if all(isinstance(row.get(column), str) for row in rows)]
    return TextTable(
        [column.replace("_", " ") for column in columns],
        [[_cell(row.get(column)) for column in columns] for row in rows],
        left=[i for i, column in enumerate(columns) if column in texts],
        title=name,
    )


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"
    return "" if value is None else str(value)


def list_studies() -> None:
    rows = []
    for name in study_names():
        kind = class_of(name)
        about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        settings = "\n".join(f"{k}={_setting(v)}" for k, v in kind().settings().items())
        rows.append([name, about, settings])
    headings = ["study", "what it measures", "settings"]
    print_table(TextTable(headings, rows, left=range(3), groups=range(len(rows))))


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value)
