"""The base class of all studies, and `gcbench papers studies`, which prints and writes one."""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.text import Text

from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.method_files import make_compressor, read_method
from gcbench.papers import PAPERS
from gcbench.runner.arguments import Arguments, read_arguments, read_keys
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.keys import read_knobs
from gcbench.runner.config.resolve import resolve
from gcbench.runner.console import TextTable, console, print_table
from gcbench.runner.data_facts import facts_of
from gcbench.runner.predict.payload import Shapes
from gcbench.runner.predict.subject import shapes_of_model
from gcbench.runner.records.environment import describe_environment, now

Row = dict[str, Any]
"""A row: `row` is its title, the others are columns: numbers, text, or lists for a figure."""


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """A measurement, whose settings are the fields of its class.

    The defaults are the settings of the results that are kept in the repository. The docstring of
    a subclass says what is measured, for which paper, and how. Numbers must be above 0, and a list
    of names may only hold names of the default.
    """

    outputs: str = "outputs"  # folder for studies/<name>.json

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Measure, and yield one row at a time."""

    def settings(self) -> dict[str, Any]:
        """Return the settings on which the numbers depend."""
        return {k: v for k, v in asdict(self).items() if k != "outputs"}


@cache
def _studies() -> dict[str, type[Study]]:
    """Return the studies of this folder and of each paper's, by the names of their classes."""
    found = {}
    for folder in ("studies", *PAPERS):
        package = import_module(f"gcbench.papers.{folder}")
        for info in pkgutil.iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{info.name}")
            for title, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ == module.__name__ and issubclass(kind, Study):
                    found[re.sub("(?<!^)(?=[A-Z])", "_", title).lower()] = kind
    return {name: kind for name, kind in sorted(found.items()) if not inspect.isabstract(kind)}


def study_names() -> list[str]:
    return list(_studies())


def class_of(name: str) -> type[Study]:
    known = _studies()
    if name not in known:
        raise ConfigError(
            f"{name}: there is no such study; type one of {', '.join(known)}, or gcbench "
            "papers studies list"
        )
    return known[name]


def make_study(name: str, arguments: Sequence[str]) -> Study:
    """Return a study with the settings that were typed as key=value.

    Raises ConfigError for an unknown study, key or value.
    """
    kind = class_of(name)
    return kind(**read_keys(kind, arguments))


def compressor(name: str, *overrides: str) -> Compressor:
    """Return the compressor of a method and overrides of its knobs, such as qsgd bits=4."""
    return make_compressor(read_method(name, read_knobs(overrides))["compressor"])


def model_shapes(*overrides: str) -> Shapes:
    """Return the shapes of the parameters of a model, by overrides such as model=resnet18."""
    config = resolve(compose_overrides(overrides))
    return shapes_of_model(config.model.as_dict(), facts_of(config.choices["model"], None))


class StudyArguments(Arguments):
    """Measures what the papers' figures and tables need besides training runs."""

    usage = "gcbench papers studies list | NAME [key=value ...]"
    examples = """
gcbench papers studies list                          all studies, and their settings
gcbench papers studies quantizer_bounds seeds=3      one, to outputs/studies/quantizer_bounds.json
"""
    takes_other_keys = True  # the settings of the study


def studies(typed: Sequence[str]) -> None:
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
                f"list {arguments.others[0]}: type gcbench papers studies list, or a study's name "
                "before its settings"
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
