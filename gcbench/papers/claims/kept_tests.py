"""The tests that claims name, and which of them passed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gcbench.runner.records.files import read_json
from gcbench.runner.records.schema import Record, Time

log = logging.getLogger("gcbench")
log = logging.getLogger("gcbench")
FILE = "tests.json"


class TestsRecord(Record):
    """The outcome of each test by its name below tests/, such as papers/test_qsgd.py::test_it."""

    commit: str
    finished: Time
    outcomes: dict[str, str]  # passed | failed | skipped, over all parameters of a test


class KeptTests(NamedTuple):
    """The record of a test run, and the file that it was read from."""

    path: Path
    record: TestsRecord


def find_tests(folders: Sequence[str | Path]) -> KeptTests | None:
    """Return the newest record of a test run below the folders; None if there is none."""
    paths = (path for folder in folders for path in Path(folder).glob(f"**/{FILE}"))
    every = []
    for path in paths:
        try:
            record = TestsRecord.model_validate(read_json(path))
            every.append(KeptTests(path, record))
        except (OSError, ValueError) as error:
            gist = str(error).partition("\n")[0]
            log.warning("not read: %s: not a record of scripts/claims_tests (%s)", path, gist)
    return max(every, key=lambda kept: kept.record.finished, default=None)
