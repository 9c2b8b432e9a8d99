"""Runs as their result files tell them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.config import Config
from gcbench.config.names import digest
from gcbench.records.kept import SUFFIX, read_kept
from gcbench.records.reading import printable, read_result
from gcbench.report.configs import Flat, flat, with_later_keys
from gcbench.report.measures import MEASURES, measure

DONE = "done"

Metrics = list[dict[str, Any]]


@dataclass(eq=False)
class Run:
    """One finished, failed or interrupted run."""

    result: dict[str, Any]  # result.json
    place: str  # its directory as it was found, or entity/project/id of W&B
    read_metrics: Callable[[], Metrics]  # the lines of metrics.jsonl, read when somebody asks

    @property
    def config(self) -> Config:
        return self.result["config"]

    @property
    def experiment(self) -> str | None:
        """paper/table/row."""
        return self.result.get("experiment")

    @property
    def budget(self) -> str:
        return self.result["choices"].get("budget", "paper")

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def status(self) -> str:
        return self.result["status"]

    @property
    def done(self) -> bool:
        return self.status == DONE

    @property
    def dirty(self) -> bool:
        """Whether it comes from a checkout with changes that no commit has."""
        return bool((self.result.get("git") or {}).get("dirty"))

    @property
    def title(self) -> str:
        """Its experiment, or what it was made of."""
        choices = self.result["choices"]
        return (
            self.experiment
            or self.config.get("name")
            or " ".join(choices[k] for k in ("model", "dataset", "compressor"))
        )

    @property
    def name(self) -> str:
        """Of its folder, without the folders around it."""
        return Path(self.place).name

    @cached_property
    def flat(self) -> Flat:
        """What of its configuration changes numbers, by dotted key, and where it was extended, as that does, too."""
        places = [extended["from_step"] for extended in self.result.get("extended") or []]
        return with_later_keys(flat(self.config)) | (
            {"extended_from_step": places} if places else {}
        )

    @cached_property
    def identity(self) -> str:
        """Equal for copies of one run."""
        result = self.result
        return digest(
            [
                self.flat,
                self.seed,
                *(result.get(k) for k in ("experiment", "status", "started", "finished")),
            ]
        )


class Found(NamedTuple):
    """What lies in some folders."""

    runs: list[Run]  # the oldest first
    unreadable: list[str]  # a sentence each


def load(folders: Sequence[str | Path]) -> Found:
    """Return all runs under `folders`, those that are kept in a file too; copies of one run count once."""
    runs: dict[str, Run] = {}
    unreadable: list[str] = []
    for path in _result_files(folders):
        try:
            for run in _runs_of(path, unreadable):
                runs.setdefault(run.identity, run)
        except (OSError, EOFError, ValueError) as error:
            unreadable.append(f"{path}: {error}")
    return Found(by_age(runs.values()), unreadable)


def _runs_of(path: Path, unreadable: list[str]) -> Iterator[Run]:
    """Yield the run of a result.json, or those of a file of kept runs; what is none there is added to `unreadable`."""
    if path.name == "result.json":
        yield read_run(path.parent)
        return
    problems = []
    for kept in read_kept(path):
        try:
            if isinstance(kept, str):
                raise ValueError(kept)
            yield checked(
                Run(kept.result, printable(f"{path}/{kept.name}"), partial(list, kept.metrics))
            )
        except ValueError as error:
            problems.append(str(error))
    if problems:  # a sentence a file, as any file may have that ending
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        unreadable.append(f"{path}: {problems[0]}{more}")


def read_run(directory: Path) -> Run:
    """Raises ValueError with what is wrong with the file."""
    result = read_result(directory / "result.json")
    return checked(
        Run(result, printable(str(directory)), lambda: _lines(directory / "metrics.jsonl"))
    )


def checked(run: Run) -> Run:
    """`run`, when all that reports ask of a run can be answered; else ValueError."""
    try:
        _ = run.identity, run.title, [measure(name, run.result) for name in MEASURES]
    except Exception as error:  # whatever a result from elsewhere may lack
        raise ValueError(
            f"no result of a run of gcbench ({type(error).__name__}: {error})"
        ) from error
    return run


def by_age(runs: Any) -> list[Run]:
    return sorted(runs, key=lambda run: (run.result["finished"], run.place))


def _result_files(folders: Sequence[str | Path]) -> Iterator[Path]:
    for folder in map(Path, folders):
        if folder.is_file():
            yield folder
        for root, folders_inside, files in os.walk(folder):
            folders_inside.sort()
            if "result.json" in files:
                folders_inside.clear()  # checkpoints and logs of the run
                yield Path(root) / "result.json"
            yield from (Path(root) / name for name in sorted(files) if name.endswith(SUFFIX))


def _lines(path: Path) -> Metrics:
    """A last line that a crash has torn is left out."""
    lines = []
    for line in (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    ):
        try:
            read = printable(json.loads(line))
        except (ValueError, RecursionError):
            continue
        lines += [read] if isinstance(read, dict) else []
    return lines
