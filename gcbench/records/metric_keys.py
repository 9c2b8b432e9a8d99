"""The names of a run's numbers in W&B, TensorBoard and metrics.csv, such as `train/loss`.

`bits/sent`, `bits/received` and `time/elapsed` are what the run has spent so far: bits that a
worker sent and got from others, and seconds of training steps. Other `bits/...` and `time/...`, and
`target/...`, describe the whole run and are logged once, at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gcbench.records.schema import Result

EVENTS = ("compression", "train", "test")  # in their order within a step
STEP = "step"
EPOCH, BITS, SECONDS = "epoch", "bits/sent", "time/elapsed"
AXES = {  # by metrics.jsonl's keys
    "epoch": EPOCH,
    "bits_sent_per_worker": BITS,
    "bits_received_per_worker": "bits/received",
    "seconds": SECONDS,
}

Line = dict[str, Any]  # a line of metrics.jsonl


def prefix_event(line: Line) -> Line:
    """Return a line with its event as prefix of the keys, without the step and without None."""
    return {
        AXES.get(key, f"{line['event']}/{key}"): value
        for key, value in line.items()
        if key not in ("event", STEP) and value is not None
    }


def split_events(row: Line, step: int) -> Iterator[Line]:
    """Yield the lines of metrics.jsonl that were merged into the row of a step."""
    spent = {key: row[name] for key, name in AXES.items() if name in row}
    for event in EVENTS:
        prefix = f"{event}/"
        values = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
        if values:
            yield {"event": event, "step": step, **spent, **values}


def totals(result: Result) -> dict[str, float]:
    """Return a finished run's bits, seconds per step of each phase, best scores, and target."""
    seconds = {f"time/{phase}": value.mean for phase, value in (result.seconds or {}).items()}
    bits: dict[str, float | None] = {
        "shannon_per_step": result.shannon_bits_per_step,
        "compressed_share": result.compressed_share,
    }
    if result.bits_sent and result.bits_wire:
        bits["per_step"] = result.bits_sent.per_step
        bits["ratio"] = result.bits_sent.ratio
        bits["received_per_step"] = result.bits_wire.per_step
        bits["received_ratio"] = result.bits_wire.ratio
    spent = result.target.model_dump(exclude={"score", "value"}) if result.target else {}
    scores = (result.test or {}).items()
    best = {k.removeprefix("best_"): v for k, v in scores if k.startswith("best_")}
    every = {"bits": bits, "best": best, "target": spent}
    return seconds | {
        f"{group}/{name}": value
        for group, values in every.items()
        for name, value in values.items()
        if value is not None
    }
