"""Tables of studies: outputs/studies/<name>.json next to the paper's numbers.

A study is written as

    {"study": "orq-table1",                       # the `study` of the table file
     "settings": {"bandwidth_gbps": 10, ...},     # what the numbers depend on, below the title
     "rows": [{"row": "GoogLeNet", "time": 41.6, ...}],  # `row` is a row's title; columns by key
     "environment": {...},                        # with `finished`; null for pure arithmetic
     "finished": "2026-01-31T12:34:56+00:00"}     # of several copies, the last one counts

and a column reads its `measure` from these rows, or its own key if `measure` is null. A number may
be a list with one number per seed. If several tables share a study, the `table` (<paper>/<table>)
of a row says to which table it belongs. Rows that the table file lacks are added below the others,
under the study's names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.papers.tables.tables import Column, Table, TableRow
from gcbench.runner.records.files import read_json
from gcbench.runner.records.schema import Environment
from gcbench.runner.report.document import EMPTY, Cell, Document, Line, Section, Summary
from gcbench.runner.report.listing import made_by

log = logging.getLogger("gcbench")
StudyResult = dict[str, Any]


class KeptStudy(NamedTuple):
    """A study, and the file that it was read from."""

    path: Path
    study: StudyResult


def find_study(name: str, folders: Sequence[str | Path]) -> KeptStudy | None:
    """Return the newest `<name>.json` under `folders` that is a study; None if there is none."""
    studies = [KeptStudy(path, _read(path)) for path in _files(name, folders)]
    return _newest(kept for kept in studies if kept.study.get("study") == name)


def find_link_table(name: str, folders: Sequence[str | Path]) -> KeptStudy | None:
    """Return the newest table of scripts/turns steps in `<folder>/**/<name>.json`, methods as rows.

    Where it has several links, a row is called `4 x 100mbit, dense`, for example.
    """
    tables = []
    for path in _files(name, folders):
        try:
            content = read_json(path)
            parts = content.get("parts")
            rows = [
                {"row": (f"{_place(part)}, " if parts else "") + row["method"], **row}
                for part in parts or [content]
                for row in part["rows"]
            ]
            tables.append(KeptStudy(path, {**content, "study": name, "rows": rows}))
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("not read: %s: not a table of scripts/turns steps (%s)", path, error)
    return _newest(tables)


def setting_of(study: StudyResult) -> str:
    """Return the hosts and links of a table of scripts/turns steps, or that it is a study."""
    parts = [part for part in study.get("parts") or [study] if "hosts" in part]
    hosts, links = ({str(part[key]): None for part in parts} for key in ("hosts", "link"))
    return f"{' and '.join(hosts)} hosts at {' and '.join(links)}" if parts else "a study"


def _place(part: Mapping[str, Any]) -> str:
    return f"{part['hosts']} x {part['link']}"


def _files(name: str, folders: Sequence[str | Path]) -> list[Path]:
    files = (file for folder in folders for file in Path(folder).rglob(f"{name}.json"))
    return sorted({file.resolve() for file in files})


def _newest(studies: Iterable[KeptStudy]) -> KeptStudy | None:
    """Return the study that was finished last: a copy's file may be newer than what it holds."""

    def age(kept: KeptStudy) -> tuple[str, float]:
        return str(kept.study.get("finished", "")), kept.path.stat().st_mtime

    return max(studies, key=age, default=None)


def _read(path: Path) -> StudyResult:
    """Return the content of the file; empty if it is not a study."""
    try:
        content = read_json(path)
        rows = content["rows"]
        if all(isinstance(row.get("row"), str) for row in rows) and isinstance(
            content.get("settings") or {}, dict
        ):
            return dict(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    log.warning("not read: %s: not a study of gcbench", path)
    return {}


def study_document(table: Table, study: StudyResult | None) -> Document:
    """Return the report of a table whose numbers come from a study."""
    rows = (
        {row["row"]: row for row in study["rows"] if row.get("table", table.name) == table.name}
        if study
        else {}
    )
    known = {title for row in table.rows for title in (row.title, row.label)}
    added = [TableRow(title) for title in rows if title not in known]
    return Document(
        name=table.name,
        title=table.title,
        under=[f"Source: {table.source}.", *([] if study is None else _settings(study))],
        headings=[table.heading(column) for column in table.columns],
        lines=[
            _line(row, table.columns, rows.get(row.label) or rows.get(row.title))
            for row in [*table.rows, *added]
        ],
        sections=_sections(table, study),
    )


def _settings(study: StudyResult) -> list[str]:
    settings = study.get("settings") or {}
    return [
        f"Study {study['study']}: " + ", ".join(f"{key}={value}" for key, value in settings.items())
    ]


def _line(row: TableRow, columns: Sequence[Column], ours: Mapping[str, Any] | None) -> Line:
    cells = [
        _cell((ours or {}).get(c.measure or c.key), (row.published or {}).get(c.key))
        for c in columns
    ]
    return Line(row.label, row.group, None, cells, "" if ours else "missing")


def _cell(value: Any, published: Any) -> Cell:
    if isinstance(value, str):
        return Cell(None, published, value)
    values = [v for v in (value if isinstance(value, list) else [value]) if v is not None]
    return Cell(Summary.of(values) if values else None, published, EMPTY)


def _sections(table: Table, study: StudyResult | None) -> list[Section]:
    notes = [*table.notes, *(f"{row.label}: {row.note}" for row in table.rows if row.note)]
    environment = (study or {}).get("environment")
    every = [
        Section(
            "Missing, and what to run",
            [] if study else [f"{table.study}: gcbench papers studies {table.study}"],
        ),
        Section("Notes", notes),
        Section(
            "Commands that made the rows",
            [f"gcbench papers studies {table.study}"] if study else [],
        ),
        Section(
            "Made by", made_by([Environment.model_validate(environment)]) if environment else []
        ),
    ]
    return [section for section in every if section.lines]


log = logging.getLogger("gcbench")
