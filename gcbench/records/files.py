"""The files of a run directory: result.json and metrics.jsonl."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


class RunFiles:
    """Strict JSON (NaN and infinity become null), and never a half-written result."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._result = directory / "result.json"
        self._metrics = directory / "metrics.jsonl"

    def write_result(self, result: dict[str, Any]) -> None:
        _replace(self._result, json.dumps(_strict(result), indent=1) + "\n")

    def read_result(self) -> dict[str, Any] | None:
        if not self._result.is_file():
            return None
        result: dict[str, Any] = json.loads(self._result.read_text())
        return result

    def append_metrics(self, line: dict[str, Any]) -> None:
        with self._metrics.open("a") as file:
            file.write(json.dumps(_strict(line)) + "\n")

    def truncate_metrics(self, step: int) -> None:
        """Drops what was logged after `step`: a run that resumes there will log it again."""
        if self._metrics.is_file():
            lines = [line for line in self._metrics.read_text().splitlines() if json.loads(line)["step"] <= step]
            _replace(self._metrics, "".join(f"{line}\n" for line in lines))

    def set_aside(self) -> None:
        """Gives the files of an earlier run names that carry the time it finished, so that a rerun loses nothing."""
        result = self.read_result()
        stamp = (result or {}).get("finished", "unfinished").replace(":", "")
        for path in (self._result, self._metrics):
            if path.exists():
                path.rename(_free(path.with_stem(f"{path.stem}-{stamp}")))


def _replace(path: Path, text: str) -> None:
    """Written whole or not at all."""
    partial = path.with_suffix(path.suffix + ".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _free(path: Path) -> Path:
    names = (path if k == 0 else path.with_stem(f"{path.stem}-{k}") for k in range(10_000))
    return next(name for name in names if not name.exists())


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
