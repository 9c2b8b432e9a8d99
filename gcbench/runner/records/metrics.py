"""The numbers of a run in its lines: their names in W&B, TensorBoard and metrics.csv, and scores.

`bits/sent`, `bits/received` and `time/elapsed` are what the run has spent so far: bits that a
worker sent and got from others, and seconds of training steps. Other `bits/...` and `time/...`,
`memory/...` and `target/...` describe the whole run and are logged once, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gcbench.runner.records.schema import Result, Target

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
    """Return a finished run's bits, times, memory, best scores, and target."""
    seconds = {f"time/{phase}": value.mean for phase, value in (result.seconds or {}).items()}
    bits: dict[str, float | None] = {
        "shannon_per_step": result.shannon_bits_per_step,
        "compressed_share": result.compressed_share,
    }
    if result.bits_sent and result.bits_wire:
        bits["per_step"] = result.bits_sent.per_step
        bits["ratio"] = result.bits_sent.ratio
        bits["bf16_ratio"] = result.bits_sent.bf16_ratio
        bits["received_per_step"] = result.bits_wire.per_step
        bits["received_ratio"] = result.bits_wire.ratio
    spent = result.target.model_dump(exclude={"score", "value"}) if result.target else {}
    scores = (result.test or {}).items()
    best = {k.removeprefix("best_"): v for k, v in scores if k.startswith("best_")}
    rates = {key: getattr(result, key) for key in ("samples_per_second", "tokens_per_second")}
    memory = {key: getattr(result, key) for key in ("peak_mib", "state_mib")}
    every = {"time": rates, "memory": memory, "bits": bits, "best": best, "target": spent}
    return seconds | {
        f"{group}/{name}": value
        for group, values in every.items()
        for name, value in values.items()
        if value is not None
    }


# Keys of a line of metrics.jsonl that say when it was written and what was spent until then.
SPENT = ("step", "epoch", "bits_received_per_worker", "seconds")
PLACE = ("event", "bits_sent_per_worker", *SPENT)
BETTER_HIGH = {"accuracy", "top5_accuracy", "tta_accuracy", "tta_top5_accuracy"}
MAIN_SCORES = ("accuracy", "perplexity", "loss")  # a run's main score: the first that it has


def where_reached(
    tests: Iterable[Mapping[str, Any]], score: str, target: float, keys: Sequence[str]
) -> dict[str, float | None] | None:
    """Return what lines of tests have under `keys` where a score first reaches `target`.

    Between two tests it is interpolated linearly over the score; a first test that reaches the
    target counts as it is. None if no test reaches it; a value is None if a test lacks it.
    """
    before: Mapping[str, Any] | None = None
    for test in tests:
        value = test.get(score)
        if value is None or not math.isfinite(value):
            continue
        if value >= target if score in BETTER_HIGH else value <= target:
            here = [test.get(key) for key in keys]
            if before is not None:
                share = (target - before[score]) / (value - before[score])
                ends = zip((before.get(key) for key in keys), here, strict=True)
                here = [None if a is None or b is None else a + share * (b - a) for a, b in ends]
            return dict(zip(keys, here, strict=True))
        before = test
    return None


def find_target(tests: Sequence[dict[str, Any]], target: float | None) -> Target | None:
    """Return when the main score of these tests first reached `target`; None without a target."""
    if target is None or not tests:
        return None
    score = _main_score(tests[-1])
    spent = where_reached(tests, score, target, SPENT) or dict.fromkeys(SPENT)
    step, epoch, bits, seconds = spent.values()
    return Target(
        score=score, value=target, step=step, epoch=epoch, received_bits=bits, seconds=seconds
    )


def reaches(test: Mapping[str, Any], target: float) -> bool:
    """Return whether the main score of a test is the target, or better."""
    return where_reached([test], _main_score(test), target, ()) is not None


def _main_score(test: Mapping[str, Any]) -> str:
    return next(name for name in MAIN_SCORES if name in test)
