"""Write a report to files, along with its runs, one file per paper, to make it again from them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gcbench.config import PAPER, ConfigError, budget_names
from gcbench.records.store import SUFFIX, RecordedRun, find_runs, write_kept
from gcbench.report.document import Document
from gcbench.report.formats import markdown


def keep_table(folder: Path, document: Document, budget: str = PAPER) -> Path:
    """Write <folder>/tables/<paper>/<table>.md and return its path.

    The file is <table>-<budget>.md if the budget is not the paper's.
    """
    path = folder / "tables" / f"{document.name}{'' if budget == PAPER else f'-{budget}'}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(document), encoding="utf-8")
    return path


def keep_study(folder: Path, study: Path) -> None:
    """Copy a study's file to <folder>/results/studies."""
    _copy(study, folder / "results" / "studies" / study.name)


def keep_tests(folder: Path, record: Path) -> None:
    """Copy the record of a test run to <folder>/results."""
    _copy(record, folder / "results" / record.name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.resolve() != target.resolve():
        shutil.copyfile(source, target)


def keep_runs(folder: Path, runs: Iterable[RecordedRun]) -> None:
    """Add runs to <folder>/results/<paper>.jsonl.xz, or to other.jsonl.xz if no paper has them.

    Runs that were stopped are not kept, and are removed from a file that has them. Raises
    ConfigError, and leaves the file as it is, if a part of it cannot be read.
    """
    by_paper: dict[str, list[RecordedRun]] = {}
    for run in runs:
        by_paper.setdefault((run.experiment or "other").partition("/")[0], []).append(run)
    for paper, more in by_paper.items():
        path = folder / "results" / f"{paper}{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            before = find_runs([path])
            if before.unreadable:
                raise ConfigError(
                    f"{before.unreadable[0]}; move the file away, as what cannot be read there "
                    "would be lost"
                )
            kept = {run.copy_key: run for run in without_stopped([*before.runs, *more])}
            write_kept(path, kept.values())


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder, as commands that add to its files at once would drop each other's runs."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def without_stopped(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """Return the runs except those stopped by a signal, which may be resumed and are not final."""
    return [run for run in runs if run.status != "interrupted"]


RESULTS = """\
# Results

What is kept of the runs behind the tables: `results/` has every run with its curves, a line each,
in a file a paper, and what studies and links measured. Tables and pictures are drawn from it:
`gcbench report table=all budget=cpu keep=outputs` writes those of a budget anew.
"""
INDEX = "## All tables"


def keep_index(folder: Path) -> None:
    """Write the index at the end of <folder>/README.md: all tables and pictures.

    The text above the index stays as it is.
    """
    page = folder / "README.md"
    text = page.read_text(encoding="utf-8").partition(INDEX)[0] if page.exists() else RESULTS
    tables = sorted((folder / "tables").rglob("*.md"))
    pictures = sorted((folder / "figures").rglob("*.png"))
    claims = [path for path in [folder / "claims.md"] if path.exists()]
    lines = [text.rstrip(), "", INDEX, ""]
    lines += [
        f"- [{_title(path)}]({path.relative_to(folder).as_posix()})" for path in [*claims, *tables]
    ]
    lines += ["", "## Pictures", ""] if pictures else []
    for path in pictures:
        place = path.relative_to(folder).as_posix()
        lines += [
            f"![{path.relative_to(folder / 'figures').with_suffix('').as_posix()}]({place})",
            "",
        ]
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _title(path: Path) -> str:
    """Return the heading of a table's file, with the budget that is in its name."""
    heading = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    _, dash, budget = path.stem.rpartition("-")
    return f"{heading} ({budget})" if dash and budget in budget_names() else heading
