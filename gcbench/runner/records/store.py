"""Runs that have a result: each in its directory, or many in one compressed file."""

from __future__ import annotations

import json
import logging
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.runner.differences import CHOICE_GROUPS, describe_choices
from gcbench.runner.identity import EXECUTION, Config, Flat, clear_folders, digest, flatten_config
from gcbench.runner.records.files import RunFiles, printable, read_json, replace_file
from gcbench.runner.records.folders import find_folders
from gcbench.runner.records.older import Change, changes_since, renew_error
from gcbench.runner.records.schema import Result, Status

log = logging.getLogger("gcbench")

SUFFIX = ".jsonl.xz"  # the extension of a file of kept runs

Metrics = list[dict[str, Any]]  # lines of metrics.jsonl


@dataclass(eq=False)
class RecordedRun:
    """A run that has ended, with any status, and its curves."""

    result: Result
    place: str  # its directory, its line in a file of kept runs, or entity/project/id of W&B
    read_metrics: Callable[[], Metrics]
    line: str | None = None  # what it was read from, if that is a file of kept runs

    @staticmethod
    def of(
        result: Result, place: str, read_metrics: Callable[[], Metrics], line: str | None = None
    ) -> RecordedRun:
        """Return a run that was read from a file, perhaps one of an older gcbench."""
        renewed, read_renewed = renew_error(result, read_metrics)
        return RecordedRun(renewed, place, read_renewed, line)

    @cached_property
    def config(self) -> Config:
        return self.result.config

    @cached_property
    def experiment(self) -> str | None:
        """Return paper/table/row, or None if the run belongs to no experiment."""
        return self.result.experiment

    @cached_property
    def budget(self) -> str:
        return self.result.choices["budget"]

    @cached_property
    def seed(self) -> int:
        seed: int = self.config["seed"]
        return seed

    @cached_property
    def status(self) -> Status:
        return self.result.status

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def dirty(self) -> bool:
        """Return whether it ran from a checkout with uncommitted changes."""
        return bool(self.result.git and self.result.git.dirty)

    @cached_property
    def outdated_by(self) -> list[Change]:
        """Return the changes that its commit did not have, after which it would score otherwise."""
        return changes_since(self.result, error_only=False) if self.result.test else []

    @property
    def title(self) -> str:
        """Return its experiment, else its name, else what it is made of.

        Unlike in `label_run`, the name does not come first, as a whole sweep of rows may share it.
        """
        made_of = describe_choices(self.result.choices)
        return self.experiment or self.config.get("name") or made_of

    @property
    def choices(self) -> dict[str, str]:
        """Return its model, data set and compressor."""
        return {group: self.result.choices[group] for group in CHOICE_GROUPS}

    @property
    def name(self) -> str:
        """Return the last part of its place."""
        return Path(self.place).name

    @cached_property
    def flat(self) -> Flat:
        """Return, by dotted key, the settings that change the run's numbers."""
        steps = [extended.from_step for extended in self.result.extended]
        groups = [[where.from_step, where.workers] for where in self.result.resharded]
        return (
            flatten_config(self.config)
            | ({"extended_from_step": steps} if steps else {})
            | ({"resharded_from_step": groups} if groups else {})
        )

    @property
    def executed(self) -> Flat:
        """Return `flat` with the settings of how it was executed, on which its times depend."""
        trainer = self.config["trainer"]
        return self.flat | {f"trainer.{key}": trainer[key] for key in EXECUTION if key in trainer}

    @cached_property
    def copy_key(self) -> str:
        """Return a hash that is equal for copies of this one run."""
        result = self.result
        started = [result.status, result.started, result.finished]
        return digest([result.identity, self.seed, self.experiment, *started])


class FoundRuns(NamedTuple):
    """The runs in some folders, and the files there that could not be read."""

    runs: list[RecordedRun]  # the oldest first
    unreadable: list[str]  # one sentence per file

    def warn(self) -> None:
        """Log a warning for every file that could not be read."""
        for sentence in self.unreadable:
            log.warning("not read: %s", sentence)


def find_runs(folders: Sequence[str | Path]) -> FoundRuns:
    """Return all runs in and below `folders`, each once, however many copies there are."""
    runs: dict[str, RecordedRun] = {}
    unreadable: list[str] = []
    for path in _result_files(folders):
        try:
            for run in _read_file(path, unreadable):
                runs.setdefault(run.copy_key, run)
        except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
            unreadable.append(f"{path}: {error}")
    return FoundRuns(sort_by_age(runs.values()), unreadable)


def find_begun(folders: Sequence[str | Path]) -> list[str]:
    """Return the directories of runs without a result: they are running, or were killed."""
    every = find_folders(folders)
    return [str(path) for path in every if not (path / "result.json").exists()]


def read_run(directory: Path) -> RecordedRun:
    """Return the run of a directory. Raises OSError, or ValueError that says what is wrong."""
    files = RunFiles(directory.absolute())  # curves are read later, perhaps from another folder
    result = Result.parse(read_json(files.result))
    return RecordedRun.of(result, str(directory), files.read_metrics)


def read_kept(path: Path) -> Iterator[RecordedRun | str]:
    """Yield the runs of a kept file, and for each line without one a sentence that says why.

    A run with the name of an earlier one has the number of its line in its place: rows of several
    tables and repeated runs share a name, and a place says whose curves to read.
    """
    names: set[str] = set()
    with lzma.open(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                run = _parse_line(line, path)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                yield f"line {number}: {error}"
                continue
            if run.name in names:
                run.place = f"{path}/{number}/{run.name}"
            names.add(run.name)
            yield run


def write_kept(path: Path, runs: Iterable[RecordedRun]) -> None:
    """Write a file of kept runs with their curves; the same runs give the same bytes."""
    ordered = sorted(runs, key=lambda run: (run.experiment or "", run.name, run.result.finished))
    text = "".join(f"{_format_line(run)}\n" for run in ordered)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lzma.compress(text.encode()))


def sort_by_age(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """Return `runs`, the oldest first."""
    return sorted(runs, key=lambda run: (run.result.finished, run.place))


def newest(runs: Iterable[RecordedRun]) -> tuple[list[RecordedRun], list[RecordedRun]]:
    """Return the newest run of every seed, sorted by seed, and all older runs."""
    by_seed: dict[int, list[RecordedRun]] = {}
    for run in sort_by_age(runs):
        by_seed.setdefault(run.seed, []).append(run)
    return [by_seed[seed][-1] for seed in sorted(by_seed)], [
        run for same in by_seed.values() for run in same[:-1]
    ]


def _result_files(folders: Sequence[str | Path]) -> Iterator[Path]:
    for folder in map(Path, folders):
        if folder.is_file():
            yield folder
        for root, folders_inside, files in os.walk(folder):
            folders_inside.sort()
            if "result.json" in files:
                folders_inside.clear()  # skips checkpoints and logs of the run
                yield Path(root) / "result.json"
            yield from (Path(root) / name for name in sorted(files) if name.endswith(SUFFIX))


def _read_file(path: Path, unreadable: list[str]) -> Iterator[RecordedRun]:
    if path.name == "result.json":
        yield read_run(path.parent)
        return
    first, count = "", 0
    for run in read_kept(path):
        if isinstance(run, str):
            first, count = first or run, count + 1
        else:
            yield run
    if count:  # one sentence per file, as any file may have that extension
        more = f", and {count - 1} more" if count > 1 else ""
        unreadable.append(f"{path}: {first}{more}")


def _parse_line(line: bytes, path: Path) -> RecordedRun:
    kept = json.loads(line)
    # Without backslashes nothing in a line is escaped, as in almost all of them.
    text = line.decode().rstrip("\n")
    if "\\" in text or not text.isprintable():
        kept = printable(kept)
    name, result, metrics = kept["name"], kept["result"], kept["metrics"]
    if not isinstance(name, str) or not isinstance(metrics, list):
        raise ValueError("its name is not text, or its metrics are not a list")
    return RecordedRun.of(Result.parse(result), f"{path}/{name}", partial(list, metrics), text)


def _format_line(run: RecordedRun) -> str:
    """Return the line of a run in a kept file, without folders of its machine.

    A kept line stays as it is: what today's reader leaves out of it, tomorrow's may read.
    """
    if run.line is not None:
        return run.line
    result = run.result.model_copy(update={"config": clear_folders(run.config)})
    line = {"name": run.name, "result": result.model_dump(), "metrics": run.read_metrics()}
    return json.dumps(line, allow_nan=False)
