"""Curves of a run, read from its metrics.jsonl: any score over epochs, steps, bits sent or seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcbench.records.store import Metrics, RecordedRun

MIB = 8 * 2**20
EVENTS = {
    "train_loss": ("train", "loss"),
    "relative_error": ("compression", "relative"),
    "squared_error": ("compression", "relative"),
    "cosine": ("compression", "cosine"),
}
SQUARED = {"squared_error"}
SPENT = {
    "bits": ("bits_sent_per_worker", 1 / MIB),
    "seconds": ("seconds", 1.0),
}  # what train lines have counted so far


class Track(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class Band(NamedTuple):
    """Of several seeds: mean, lowest, highest."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def track(run: RecordedRun, y: str, x: str) -> Track | None:
    """None where the run has no such line, as of times of virtual workers."""
    lines = run.read_metrics()
    event, key = EVENTS.get(y, ("test", y))
    found = [line for line in lines if line["event"] == event and line.get(key) is not None]
    places = [line["epoch" if x == "epoch" else "step"] for line in found]
    spent = np.array(places, dtype=float) if x in ("epoch", "step") else _spent(lines, x, places)
    if not found or spent is None:
        return None
    values = np.array([line[key] for line in found], dtype=float)
    return Track(spent, values**2 if y in SQUARED else values)


def _spent(lines: Metrics, x: str, steps: Sequence[int]) -> np.ndarray | None:
    """Bits or seconds until these steps; straight between two train lines."""
    key, scale = SPENT[x]
    known = [
        (line["step"], line[key])
        for line in lines
        if line["event"] == "train" and line.get(key) is not None
    ]
    if not known:
        return None
    at, counted = zip((0, 0.0), *known, strict=True)
    return np.interp(steps, at, counted) * scale


def band(runs: Sequence[RecordedRun], y: str, x: str) -> Band | None:
    """Point by point over the seeds that have such a curve, as far as the shortest goes."""
    tracks = [found for run in runs if (found := track(run, y, x))]
    if not tracks:
        return None
    length = min(len(found.x) for found in tracks)
    xs, ys = (np.stack([getattr(found, name)[:length] for found in tracks]) for name in ("x", "y"))
    return Band(xs.mean(0), ys.mean(0), ys.min(0), ys.max(0))
