"""The command `gcbench methods`: every choice of conf/compressor and what it promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gcbench.check.steps import WORKERS
from gcbench.check.wire import REFERENCE, VALUES, Wire, wire
from gcbench.compressors import Compressor, is_direction, parts_of
from gcbench.compressors.build import Feedback
from gcbench.compressors.ef21 import EF21
from gcbench.compressors.loco import LoCo
from gcbench.compressors.wrappers import ErrorFeedback
from gcbench.config import (
    ConfigError,
    compose_methods,
    conf_directory,
    near,
    resolve_method,
)
from gcbench.config.directory import form_in, top_comment
from gcbench.console import TextTable, print_table
from gcbench.launch.instantiate import make_compressor


class ListedMethod(NamedTuple):
    """An entry of the list of methods."""

    name: str
    about: str
    form: str  # whose form of the method the defaults are: paper, code or ours
    knobs: list[str]
    promises: list[str]
    wire: Wire | None  # None if it was not measured


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
    for name, (node, knobs) in compose_methods(names or list(files), config_dir).items():
        if overrides:
            node = resolve_method([f"compressor={name}", *overrides], config_dir)
        compressor = make_compressor(node, quiet=True)
        yield ListedMethod(
            name,
            " ".join(top_comment(files[name])),
            form_in(files[name]),
            knobs,
            _promises(compressor),
            wire(compressor) if measure else None,
        )


def _promises(compressor: Compressor) -> list[str]:
    """Return the promises of the method by itself, and its kind of error feedback."""
    feedback = next((p for p in parts_of(compressor) if isinstance(p, Feedback)), None)
    properties = (feedback.inner if feedback else compressor).properties
    promises = {
        "exact": properties.exact,
        "unbiased": properties.unbiased,
        "contractive": properties.contractive,
        "mean-linear": properties.mean_linear,
        "divisible": properties.divisible,
        "no scale": is_direction(compressor),
        "global scope": properties.scope == "global",
        "+ residual": isinstance(feedback, ErrorFeedback),
        "+ EF21": isinstance(feedback, EF21),
        "+ 8-bit residual": isinstance(feedback, LoCo),
    }
    return [name for name, holds in promises.items() if holds]


def list_methods(
    names: Sequence[str] = (),
    measure: bool = False,
    config_dir: str | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Print the methods of these names, or all; with `measure`, also what they send."""
    measured = ["bits per value", "x fewer than fp32", "x fewer received"] if measure else []
    rows = []
    for method in read_methods(names, measure, config_dir, overrides):
        about = f"{method.about}\n{' '.join(method.knobs)}".rstrip()
        wire = method.wire
        ratios = [f"{wire.ratio:.1f}", f"{wire.received_ratio:.1f}"] if wire else []
        sent = ["\n".join(wire.lines), *ratios] if wire else []
        rows.append([method.name, about, *sent, method.form, "\n".join(method.promises)])
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in REFERENCE.values())
    measured_note = (
        f"Measured with {' '.join(overrides) or 'all knobs as they are'}, in the first compressed "
        f"step of {WORKERS} workers, on {VALUES:,} values ({shapes}). What a worker receives is "
        "compared with an all-reduce of fp32 values."
    )
    not_measured_note = (
        "What they send is measured with gcbench methods measure=true, or gcbench methods NAME."
    )
    promises_note = (
        "Promises are those of the method by itself; gcbench check compressor=NAME tests them."
    )
    form_note = (
        "The form of a method that its knobs have by default is its paper's, that of its authors' "
        "code, or ours; its file in gcbench/compressors lists the differences."
    )
    notes = [measured_note if measure else not_measured_note, form_note, promises_note]
    headings = ["compressor", "what it is, and its knobs", *measured, "form", "promises"]
    left = set(range(len(headings))) - ({3, 4} if measure else set())
    table = TextTable(headings, rows, left, groups=range(len(rows)), notes=notes)
    print_table(table)
