"""A report as files, with the results behind it, so that it can be made again from these alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcbench.records import RunFiles
from gcbench.report.configs import PAPER
from gcbench.report.document import Document
from gcbench.report.formats import comma_separated, latex, markdown
from gcbench.report.load import Run

FILES = {"table.md": markdown, "table.csv": comma_separated, "table.tex": latex}


def keep(folder: Path, document: Document, runs: Sequence[Run], study: Path | None = None, budget: str = PAPER) -> Path:
    """Writes <folder>/<paper>/<table>/ anew (<budget>/ in it, unless it is the paper's): table.md, table.csv, table.tex and
    runs/<run>/ (or the study's file)."""
    target = folder / document.name / ("" if budget == PAPER else budget)
    new = target / "runs.new"
    shutil.rmtree(new, ignore_errors=True)
    for run in runs:
        _copy(run, new)
    shutil.rmtree(target / "runs", ignore_errors=True)
    if runs:
        new.replace(target / "runs")
    target.mkdir(parents=True, exist_ok=True)
    for name, write in FILES.items():
        (target / name).write_text(write(document), encoding="utf-8")
    if study is not None and study.resolve() != (target / study.name).resolve():
        shutil.copyfile(study, target / study.name)
    return target


def _copy(run: Run, folder: Path) -> None:
    metrics = run.read_metrics()
    taken = [path.name for path in folder.glob("*")]
    name = next(n for n in [run.name, *(f"{run.name}-{i}" for i in range(2, len(taken) + 3))] if n not in taken)
    files = RunFiles(folder / name)
    files.directory.mkdir(parents=True)
    files.write_result(_without_places(run.result))
    for line in metrics:
        files.append_metrics(line)


def _without_places(result: dict[str, Any]) -> dict[str, Any]:
    """Folders of the machine where it ran say nothing to anybody else."""
    config = result["config"]
    cleared = {key: None for key in ("outputs", "directory", "data") if key in config}
    dataset = {**config["dataset"], **({"root": None} if "root" in config["dataset"] else {})}
    return {**result, "config": {**config, **cleared, "dataset": dataset}}
