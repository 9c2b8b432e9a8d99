"""Curves of a run from its metrics.jsonl: a score over epochs, steps, bits sent or seconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from gcbench.records.schema import BITS_PER_MIB
from gcbench.records.store import Metrics, RecordedRun

EVENTS = {
    "train_loss": ("train", "loss"),
    "relative_error": ("compression", "relative"),
    "vnmse": ("compression", "relative"),
    "cosine": ("compression", "cosine"),
}
SQUARED = {"vnmse"}
SPENT = {"bits": ("bits_sent_per_worker", 1 / BITS_PER_MIB), "seconds": ("seconds", 1.0)}


class Track(NamedTuple):
    """The curve of one run: three arrays `[n]`."""

    step: np.ndarray
    x: np.ndarray
    y: np.ndarray


class Band(NamedTuple):
    """The curve of several seeds: mean, lowest and highest at each point, in arrays `[n]`."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def track(run: RecordedRun, y: str, x: str) -> Track | None:
    """Return a run's curve of `y` over `x`, or None if metrics.jsonl does not have both."""
    lines = run.read_metrics()
    event, key = EVENTS.get(y, ("test", y))
    points = [line for line in lines if line["event"] == event and line.get(key) is not None]
    steps = [line["step"] for line in points]
    spent = _spent(lines, x, steps) if x in SPENT else np.array([line[x] for line in points], float)
    if not points or spent is None:
        return None
    values = np.array([line[key] for line in points], dtype=float)
    return Track(np.array(steps), spent, values**2 if y in SQUARED else values)


def _spent(lines: Metrics, x: str, steps: Sequence[int]) -> np.ndarray | None:
    """Return the MiB or seconds spent up to each step, interpolated linearly between lines."""
    key, scale = SPENT[x]
    known = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    if not known:
        return None
    at, counted = zip((0, 0.0), *known, strict=True)
    return np.interp(steps, at, counted) * scale


def band(runs: Sequence[RecordedRun], y: str, x: str) -> Band | None:
    """Return mean and range over seeds at each step that all curves have.

    A curve lacks the steps at which it is not finite. None if there is no such step.
    """
    tracks = [curve for run in runs if (curve := track(run, y, x))]
    if not tracks:
        return None
    steps = reduce(np.intersect1d, [curve.step for curve in tracks])
    if not len(steps):
        return None
    at = [np.searchsorted(curve.step, steps) for curve in tracks]
    xs = np.stack([curve.x[places] for curve, places in zip(tracks, at, strict=True)])
    ys = np.stack([curve.y[places] for curve, places in zip(tracks, at, strict=True)])
    return Band(xs.mean(0), ys.mean(0), ys.min(0), ys.max(0))
