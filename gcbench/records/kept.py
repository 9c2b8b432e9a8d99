"""Runs that are kept: a compressed file a paper with a line a run, so that a clone has every number behind its tables."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.records.files import replace_file
from gcbench.records.reading import printable, problem_of

SUFFIX = ".jsonl.gz"


class KeptRun(NamedTuple):
    """What a line holds."""

    name: str  # of the run's directory
    result: dict[str, Any]
    metrics: list[dict[str, Any]]


def read_kept(path: Path) -> Iterator[KeptRun | str]:
    """Yield the runs of a file; in the place of a line that holds none, a sentence that says why."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                run = KeptRun(**printable(json.loads(line)))
                problem = problem_of(run.result)
                if not isinstance(run.name, str) or not isinstance(run.metrics, list):
                    problem = "its name is no text, or its metrics are no list"
            except (ValueError, TypeError, RecursionError) as error:
                problem = str(error)
            yield f"line {number}: {problem}" if problem else run


def write_kept(path: Path, runs: Iterable[KeptRun]) -> None:
    """Write a file of runs, the same bytes for the same runs."""
    ordered = sorted(
        runs, key=lambda run: (run.result.get("experiment") or "", run.name, run.result["finished"])
    )
    text = "".join(
        json.dumps(_without_places(run)._asdict(), allow_nan=False) + "\n" for run in ordered
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, gzip.compress(text.encode(), mtime=0))


def _without_places(run: KeptRun) -> KeptRun:
    """Return the run without folders of the machine where it ran, which say nothing to anybody else."""
    config = run.result["config"]
    cleared = {key: None for key in ("outputs", "directory", "data") if key in config}
    dataset = {**config["dataset"], **({"root": None} if "root" in config["dataset"] else {})}
    return run._replace(result={**run.result, "config": {**config, **cleared, "dataset": dataset}})
