"""Test scores: which is a run's main one, and when tests first reach a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
