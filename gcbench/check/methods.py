"""`gcbench-methods`: every choice of conf/compressor, what it sends and what it promises."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from gcbench.check.steps import WORKERS
from gcbench.check.wire import REFERENCE, VALUES, Wire, wire
from gcbench.compressors import Compressor, parts_of
from gcbench.compressors.wrappers import ErrorFeedback
from gcbench.config import compose_words, conf_directory, resolve
from gcbench.launch.instantiate import make
from gcbench.records import console

WIDTH = 120  # where no terminal has one


class Method(NamedTuple):
    about: str
    knobs: list[str]
    wire: Wire
    promises: list[str]


def choices(config_dir: str | None = None) -> dict[str, Path]:
    """Name to file, of ours and of those in `config_dir`."""
    folders = [conf_directory(), *([Path(config_dir)] if config_dir else [])]
    return {path.stem: path for folder in folders for path in sorted((folder / "compressor").glob("*.yaml"))}


def method(choice: str, path: Path, config_dir: str | None = None) -> Method:
    config = resolve(compose_words([f"compressor={choice}"], config_dir))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compressor: Compressor = make(config["compressor"], "compressor")
    knobs = [k for k in config if k not in _keys_of_any_run() | {"compressor", "recommended"}]
    return Method(_about(path), knobs, wire(compressor), _promises(compressor))


@cache
def _keys_of_any_run() -> set[str]:
    return set(resolve(compose_words(["compressor=none", "~compressor"])))


def _about(path: Path) -> str:
    """The comment on top of the file, without where its keys go."""
    lines = path.read_text().splitlines()
    top = lines[: next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))]
    return " ".join(line.lstrip("# ") for line in top if "@package" not in line)


def _promises(compressor: Compressor) -> list[str]:
    """Of the method by itself, and whether a memory is around it."""
    memory = next((part for part in parts_of(compressor) if isinstance(part, ErrorFeedback)), None)
    own = (memory.inner if memory else compressor).properties
    named = {"exact": own.exact, "unbiased": own.unbiased, "contractive": own.contractive, "mean-linear": own.mean_linear}
    found = [name for name, promised in named.items() if promised]
    return found + ["global scope"] * (own.scope == "global") + ["+ memory"] * bool(memory)


def list_methods(config_dir: str | None = None) -> None:
    output = console(WIDTH)
    table = Table("compressor", "what it is, and its knobs", "bits a value it sends", "x fewer", "promises", box=box.SIMPLE)
    for choice, path in choices(config_dir).items():
        found = method(choice, path, config_dir)
        about = f"{found.about}\n[dim]{' '.join(found.knobs)}[/dim]\n"
        table.add_row(choice, about, "\n".join(found.wire.lines), f"{found.wire.ratio:.1f}", "\n".join(found.promises))
    output.print(table)
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in REFERENCE.values())
    output.print(
        f"Measured with all knobs as they are, in the first step of {WORKERS} workers, on {VALUES:,} values ({shapes}). "
        "Promises are those of the method by itself; gcbench-check compressor=NAME holds it to them.",
        highlight=False,
    )
