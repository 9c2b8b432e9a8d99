"""The files of a run: result.json, written atomically, and metrics.jsonl, one line per record."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from gcbench.core.errors import escape
from gcbench.runner.identity import finite
from gcbench.runner.records.schema import (
    Configuration,
    Extended,
    Git,
    ReadByName,
    Record,
    Resharded,
    Result,
    first_problem,
    in_todays_names,
)

FULL = (errno.ENOSPC, errno.EDQUOT)  # of the disk, and of the user's quota
ENDED = ("done", "diverged")  # statuses that the same run would reach again
PLAIN = (float, int, bool, type(None))  # most of what curves are made of, and nothing to escape


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, made printable.

    Raises OSError, or ValueError that says what is wrong with the content.
    """
    text = path.read_text(encoding="utf-8")
    try:
        return printable(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error


def printable(value: Any) -> Any:
    """Return `value` with control characters, which a terminal would obey, escaped."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):  # W&B's tables are not dictionaries
        return {
            escape(key) if isinstance(key, str) else key: (
                item if type(item) in PLAIN else printable(item)
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [printable(item) for item in value]
    return value


class WriteError(OSError):
    """A file of a run cannot be written; the message says which, why, and what to do."""

    def __str__(self) -> str:
        return str(self.strerror)


class _Start(Record):
    """The content of start.json that a run needs to continue."""

    config: Configuration
    git: Git
    extended: list[Extended]
    resharded: list[Resharded] = []
    run_id: str | None = None


def _config_of_start(content: Any) -> dict[str, Any]:
    """Return the configuration in start.json; raise ValueError if it lacks what a run needs."""
    try:
        config = _Start.model_validate(in_todays_names(content)).config
        ReadByName.model_validate({"config": config, "choices": config.get("choices")})
        return config
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error


class RunFiles:
    """The files in the directory of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.result = directory / "result.json"
        self.metrics = directory / "metrics.jsonl"
        self.table = directory / "metrics.csv"  # written with logger=csv
        self.weights = directory / "weights.pt"
        self.checkpoints = directory / "checkpoints"
        self.gradients = directory / "gradients"
        self.tensorboard = directory / "tensorboard"
        self.config = directory / "config.yaml"  # what was typed, for --config
        self._start = directory / "start.json"

    def write_config(self, text: str) -> None:
        """Write config.yaml."""
        replace_file(self.config, _encode(text))

    def write_result(self, result: Result) -> None:
        """Write result.json."""
        replace_file(self.result, _encode(_strict_json(result.model_dump(), indent=2) + "\n"))

    def read_result(self) -> Result | None:
        """Return the result, or None if there is none; raise ValueError if it is damaged."""
        try:
            return Result.parse(read_json(self.result))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{self.result}: {error}; move it away, or type rerun=true") from error

    def write_start(self, start: dict[str, Any]) -> None:
        """Write start.json: the run and its origin, which remain even if the run is killed."""
        replace_file(self._start, _encode(_strict_json(start, indent=2) + "\n"))

    def read_start(self) -> dict[str, Any] | None:
        """Return the content of start.json, or None if there is none or it is damaged."""
        try:
            start = read_json(self._start)
            config = _config_of_start(start)
        except (FileNotFoundError, ValueError):  # an older gcbench wrote none
            return None
        return {**start, "config": config}

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        append_text(self.metrics, _strict_json(metrics) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl, without lines that a crash cut short."""
        if not self.metrics.is_file():
            return []
        records = []
        for line in self.metrics.read_bytes().splitlines():
            try:
                record = printable(json.loads(line))
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                records.append(record)
        return records

    def last_logged(self) -> int:
        """Return the step of the last training record, or 0 if there is none."""
        lines = (line for line in self.read_metrics() if line.get("event") == "train")
        return max((int(line["step"]) for line in lines), default=0)

    def truncate_metrics(self, step: int, tested: int) -> int:
        """Remove the lines that the checkpoint from which the run continues does not know.

        These are all after its `step`. A test is also unknown if it came after its last test, at
        step `tested`: a run that continues makes up for the test that was due when it was stopped,
        and would do so again. Lines that are no records are removed, too; their number is returned,
        without a last one that a crash cut short. Raises ValueError if the file is not UTF-8 text.
        """
        if not self.metrics.exists():
            return 0
        try:
            lines = self.metrics.read_text(encoding="utf-8").split("\n")
        except ValueError as error:
            raise ValueError(
                f"{self.metrics} is not UTF-8 text ({error}); move it away to go on without it"
            ) from error
        known = [_is_up_to(line, step, tested) for line in lines]
        kept = (f"{line}\n" for line, is_known in zip(lines, known, strict=True) if is_known)
        replace_file(self.metrics, "".join(kept).encode())
        return known[:-1].count(None)  # the last one is empty, or was cut short

    def set_aside(self, extends: bool = False) -> None:
        """Rename an earlier run's files to names such as result.2025-01-31T12-30-59.123456Z.json.

        If the run is extended, its result is copied instead, to stay until there is the next one,
        and its metrics are continued.
        """
        files = [self.result, self.weights]
        if not extends:
            files += [self.metrics, self.table, self.gradients, self.tensorboard]
        left = [path for path in files if path.exists()]
        if left:
            finished = datetime.fromtimestamp(left[0].stat().st_mtime, timezone.utc)
            stamp = finished.strftime("%Y-%m-%dT%H-%M-%S.%fZ")
        for path in left:
            aside = path.with_suffix(f".{stamp}{path.suffix}")
            with clear_errors(path):
                if extends and path == self.result:
                    shutil.copy2(path, aside)
                else:
                    path.rename(aside)


def _strict_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(finite(value), allow_nan=False, ensure_ascii=False, indent=indent)


def _encode(text: str) -> bytes:
    """Return JSON in UTF-8; what that cannot represent becomes JSON's own escape, as in \\udcff."""
    return text.encode(errors="backslashreplace")


def _is_up_to(line: str, step: int, tested: int) -> bool | None:
    """Return whether a record is not after these steps; None if the line is no record."""
    try:
        record = json.loads(line)
        last = tested if record.get("event") == "test" else step
        return bool(record.get("step", 0) <= last)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new, even after a crash."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces `path` once it is completely written."""
    new = path.with_name(path.name + ".new")
    with clear_errors(path):
        try:
            with new.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)  # makes room for the result
            raise


def append_text(path: Path, text: str) -> None:
    with clear_errors(path), open(path, "a", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Raise WriteError, with what to do, for an OSError in this context, which writes `path`."""
    try:
        yield
    except OSError as error:
        gone = "" if path.parent.is_dir() else f"; {path.parent} is no longer there"
        room = "make room there, or " if error.errno in FULL else ""
        raise WriteError(
            error.errno,
            f"cannot write {path} ({error.strerror}){gone}; {room}type another outputs=<folder>",
        ) from error
