"""Measurements on devices that are lent for minutes: a line each in a file, and a page of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gcbench.runner.bench.timing import Row
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.records.environment import describe_environment, now


class Lines:
    """The last line of each measurement in <folder>/results/gpu.jsonl, by device and name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "results" / "gpu.jsonl"
        self._environment = describe_environment().model_dump(exclude={"device", "finished"})
        self._told: Row = {}  # the environment of the file's last line
        self.lines: dict[tuple[str, str], Row] = {}
        for text in self._file.read_text().splitlines() if self._file.exists() else ():
            with suppress(json.JSONDecodeError):  # the machine may have gone while it was written
                line = {**self._told, **json.loads(text)}
                self._told = {key: line[key] for key in self._environment}
                self.lines[line["device"], line["name"]] = line

    def has(self, device: str, name: str, even_failed: bool = False) -> bool:
        line = self.lines.get((device, name))
        return line is not None and (even_failed or not line["error"])

    def add(
        self, device: str, name: str, seconds: float, rows: Iterable[Row], error: str | None
    ) -> None:
        """Add a line that outlives this process from now on."""
        rounded = [{k: _round(v) for k, v in row.items()} for row in rows]
        line = {"name": name, "seconds": round(seconds, 1), "error": error, "rows": rounded}
        self._write({**line, **self._environment, "finished": now(), "device": device})

    def add_from(self, earlier: Lines) -> None:
        """Add what is measured there and not here, and what failed there and was not tried here."""
        for (device, name), line in earlier.lines.items():
            if not self.has(device, name, even_failed=bool(line["error"])):
                self._write(line)

    def _write(self, line: Row) -> None:
        self.lines[line["device"], line["name"]] = line
        environment = {key: line[key] for key in self._environment}
        if environment == self._told:  # the file's last line told it
            line = {key: value for key, value in line.items() if key not in environment}
        self._told = environment
        self._file.parent.mkdir(parents=True, exist_ok=True)
        torn = self._file.exists() and not self._file.read_bytes().endswith(b"\n")
        with self._file.open("a") as file:
            file.write("\n" * torn + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write_page(self) -> Path:
        """Write <folder>/tables/studies/gpu.md, with a table of each device."""
        text = [
            "# Measured on a GPU\n\nBy `scripts/gpu_evidence`. `x` is the ratio to a copy of as"
        ]
        text += ["many values, and of steps that to a step without an exchange."]
        for device in dict.fromkeys(device for device, _ in self.lines):
            lines = [line for (on, _), line in self.lines.items() if on == device]
            cells = [
                [line["name"], row["part"], f"{row['milliseconds']:.3f}", f"{row['x']:.2f}"]
                for line in lines
                for row in line["rows"]
                if "part" in row
            ]
            table = TextTable(["measurement", "part", "ms", "x"], cells, left=(0, 1))
            text += [f"\n## {device}\n\n{markdown(table)}\n"]
            text += [
                f"- {line['name']}: {row['said']}"
                for line in lines
                for row in line["rows"]
                if "said" in row
            ]
            text += [f"- {line['name']} failed: {line['error']}" for line in lines if line["error"]]
        page = self._folder / "tables" / "studies" / "gpu.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("\n".join(text) + "\n")
        return page


def _round(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
