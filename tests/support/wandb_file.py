"""Read the file of an offline W&B run: records of its protocol in LevelDB's log format."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER = 7  # bytes of the file's header, and of each chunk's
BLOCK = 2**15
FULL, LAST = 1, 4  # kinds of chunks that end a record


@dataclass
class WandbRun:
    """A run as W&B would show it, with attributes named as in its public API."""

    id: str = ""
    resume: str | None = None
    name: str = ""
    group: str = ""
    project: str = ""
    entity: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    steps_of: dict[str, str] = field(default_factory=dict)  # from a metric's pattern to its x axis
    summary_metrics: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def keys(self) -> set[str]:
        """Return all keys of history and summary, nested ones with dots."""
        return {key for line in self.history for key in line} | set(_dotted(self.summary_metrics))

    def scan_history(self) -> list[dict[str, Any]]:
        """Return rows as the API does: each with every key, and None for what it lacks."""
        keys = {key: None for line in self.history for key in line}
        return [{**keys, **line} for line in self.history]


def read_offline(*files: Path) -> WandbRun:
    """Return the run that `wandb sync` would make from these files, the oldest first."""
    run = WandbRun()
    for file in files:
        for record in _records(file.read_bytes()):
            _apply(run, record)
    return run


def _records(content: bytes) -> list[Record]:
    assert content[:4] == b":W&B"
    records, parts, at = [], b"", HEADER
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # no chunk begins at the end of a block
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            records.append(Record.FromString(parts))
            parts = b""
    return records


def _apply(run: WandbRun, record: Record) -> None:
    match record.WhichOneof("record_type"):
        case "run":
            run.id, run.name, run.group = (
                record.run.run_id,
                record.run.display_name,
                record.run.run_group,
            )
            run.tags = list(record.run.tags)
            run.project, run.entity = record.run.project, record.run.entity
            _set(run.config, record.run.config.update)
        case "config":
            _set(run.config, record.config.update)
        case "metric":
            run.steps_of[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        case "history":
            line: dict[str, Any] = {}
            _set(line, record.history.item)
            run.history.append(line)
            run.summary_metrics.update(line)
        case "summary":
            _set(run.summary_metrics, record.summary.update)


def _set(node: dict[str, Any], items: Any) -> None:
    for item in items:
        *parents, last = item.nested_key or [item.key]
        inner = node
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = json.loads(item.value_json)


def _dotted(node: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in node.items():
        keys.append(prefix + key)
        if isinstance(value, dict):
            keys += _dotted(value, f"{prefix}{key}.")
    return keys
