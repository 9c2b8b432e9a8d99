"""Epochs to a target score, from kept curves."""

from __future__ import annotations

from collections.abc import Iterable

from gcbench.records.scores import where_reached
from gcbench.records.store import RecordedRun


def epochs_to(runs: Iterable[RecordedRun], score: str, target: float) -> list[float]:
    """Return the epochs to a target of each run; empty unless every one reaches it."""
    epochs = []
    for run in runs:
        tests = (line for line in run.read_metrics() if line["event"] == "test")
        reached = where_reached(tests, score, target, ["epoch"])
        if reached is None or reached["epoch"] is None:
            return []
        epochs.append(reached["epoch"])
    return epochs
