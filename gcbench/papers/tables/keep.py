"""Write a report to files, along with its runs, one file per paper, to make it again from them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from urllib.parse import quote

from gcbench.core.errors import ConfigError
from gcbench.papers import PAPERS
from gcbench.runner.config.budget import PAPER, budget_names
from gcbench.runner.records.store import SUFFIX, RecordedRun, find_runs, write_kept
from gcbench.runner.report.document import Document, markdown


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
            kept = {run.copy_key: run for run in without_stopped([*more, *before.runs])}
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

`results/` keeps the runs behind the tables, one run with its curves per line, and what studies and
links measured. Tables and pictures are drawn from it; to make those of a budget again, type
`gcbench report table=all budget=cpu keep=outputs`.
"""
INDEX = "## All tables"
GROUPS = {
    **PAPERS,
    "links": "Steps on shaped links",
    "modern": "All methods on one model",
    "studies": "Studies",
    "": "Everything that ran",
}


def keep_index(folder: Path) -> None:
    """Write the index of all tables and pictures, by paper.

    <folder>/tables/<paper>/README.md lists those of a paper, and <folder>/README.md these pages.
    The text above an index stays as it is.
    """
    claims = folder / "claims.md"
    lines = ["", f"- [{_title(claims)}]({claims.name})"] if claims.exists() else [""]
    groups: dict[str, list[Path]] = {group: [] for group in GROUPS}
    tables = (path for path in (folder / "tables").rglob("*.md") if path.name != "README.md")
    for path in [*sorted(tables), *sorted((folder / "figures").rglob("*.png"))]:
        group = "/".join(path.relative_to(folder).parts[1:-1][:1])
        groups.setdefault(group, []).append(path)
    for group, members in groups.items():
        if members:
            page = folder / "tables" / group / "README.md"
            title = GROUPS.get(group, group)
            _write_index(page, f"# {title}\n", _list_members(page.parent, members))
            lines.append(f"- [{title}]({page.relative_to(folder).as_posix()})")
    _write_index(folder / "README.md", RESULTS, lines)


def _write_index(page: Path, otherwise: str, lines: Sequence[str]) -> None:
    """Write an index at the end of a page, below its text, or below `otherwise` if it is new."""
    text = page.read_text(encoding="utf-8").partition(INDEX)[0] if page.exists() else otherwise
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join([text.rstrip(), "", INDEX, *lines]) + "\n", encoding="utf-8")


def _list_members(page: Path, members: Sequence[Path]) -> list[str]:
    tables = [path for path in members if path.suffix == ".md"]
    pictures = [path for path in members if path.suffix == ".png"]
    lines = [""] if tables else []
    lines += [f"- [{_title(path)}]({_from(page, path)})" for path in tables]
    for i in range(0, len(pictures), 2):
        lines += ["", *_side_by_side(page, pictures[i : i + 2])]
    return lines


def _from(page: Path, path: Path) -> str:
    return Path(os.path.relpath(path, page)).as_posix()


def _side_by_side(page: Path, pictures: Sequence[Path]) -> list[str]:
    """Return a paragraph of pictures above their captions; Markdown itself has no widths."""
    places = [_from(page, path) for path in pictures]
    captions = [_caption(Path(place.partition("figures/")[2])) for place in places]
    return [
        "<p>",
        *(
            f'<img src="{quote(place)}" alt="{escape(caption)}" width="49%">'
            for place, caption in zip(places, captions, strict=True)
        ),
        f"<br><em>{escape('; '.join(captions))}</em>",
        "</p>",
    ]


def _caption(picture: Path) -> str:
    """Return `figure5: accuracy over bits (cpu)` for ecqsgd/figure5/accuracy-over-bits-cpu.png."""
    words = picture.stem.split("-")
    budget = f" ({words.pop()})" if words[-1] in budget_names() else ""
    table = "/".join(picture.parts[1:-1])
    return f"{table}{': ' * bool(table)}{' '.join(words).replace('_', ' ')}{budget}"


def _title(path: Path) -> str:
    """Return the heading of a table's file, with the budget that is in its name."""
    heading = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    _, dash, budget = path.stem.rpartition("-")
    return f"{heading} ({budget})" if dash and budget in budget_names() else heading
