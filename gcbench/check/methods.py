"""The command `gcbench methods`: every choice of conf/compressor and what it promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gcbench.config import (
    Config,
    ConfigError,
    compose_methods,
    conf_directory,
    near,
    resolve_method,
)
from gcbench.config.directory import form_in, top_comment
from gcbench.config.help import keys_in, sort_keys
from gcbench.console import TextTable, print_table

if TYPE_CHECKING:
    from gcbench.check.wire import Measured


class ListedMethod(NamedTuple):
    """An entry of the list of methods."""

    name: str
    about: str
    form: str  # whose form of the method the defaults are: paper, code or ours
    knobs: list[str]
    measured: Measured | None  # None if it was not


def choices(config_dir: str | None = None) -> dict[str, Path]:
    """Return the files of all methods by name, ours and those in `config_dir`."""
    folders = [conf_directory(), *([Path(config_dir)] if config_dir else [])]
    return {
        path.stem: path
        for folder in folders
        for path in sorted((folder / "compressor").glob("*.yaml"))
    }


def read_methods(
    names: Sequence[str],
    measure: bool,
    config_dir: str | None = None,
    overrides: Sequence[str] = (),
) -> Iterator[ListedMethod]:
    """Yield the methods of these names with `overrides`, or all methods if there are no names.

    Raises ConfigError for an unknown name.
    """
    files = choices(config_dir)
    for name in names:
        if name not in files:
            raise ConfigError(
                f"{name}: there is no such method; type {near(name, files) or ', '.join(files)}"
            )
    asked = names or list(files)
    # Files of ours say their knobs; a composition, which takes seconds, reads any file.
    composed = compose_methods(asked, config_dir) if measure or config_dir else {}
    for name in asked:
        node, knobs = composed.get(name) or ({}, sort_keys(keys_in(files[name])))
        if overrides:
            node = resolve_method([f"compressor={name}", *overrides], config_dir)
        about, form = " ".join(top_comment(files[name])), form_in(files[name])
        yield ListedMethod(name, about, form, knobs, _measure(node) if measure else None)


def _measure(node: Config) -> Measured:
    from gcbench.check.wire import measure_method  # imports torch
    from gcbench.launch.instantiate import make_compressor

    return measure_method(make_compressor(node, quiet=True))


def list_methods(
    names: Sequence[str] = (),
    measure: bool = False,
    config_dir: str | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Print the methods of these names, or all; with `measure`, what they promise and send."""
    rows = []
    for method in read_methods(names, measure, config_dir, overrides):
        about = f"{method.about}\n{' '.join(method.knobs)}".rstrip()
        rows.append([method.name, about, method.form, *(method.measured or ())])
    notes = [
        "The form of a method that its knobs have by default is its paper's, that of its authors' "
        "code, or ours; its file in gcbench/compressors lists the differences."
    ]
    headings = ["compressor", "what it is, and its knobs", "form"]
    if measure:
        from gcbench.check.wire import MEASURED, notes_of

        headings += MEASURED
        notes = [*notes_of(" ".join(overrides)), *notes]
    else:
        notes = [
            "What they promise, and what they send, measured: gcbench methods measure=true, or "
            "gcbench methods NAME.",
            *notes,
        ]
    left = [i for i, heading in enumerate(headings) if not heading.startswith("x fewer")]
    print_table(TextTable(headings, rows, left, groups=range(len(rows)), notes=notes))
