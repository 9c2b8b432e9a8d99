"""Settings that contradict one another are refused, and no fewer of them."""

from __future__ import annotations

from typing import Any

import pytest
from nightly import each

from gcbench.core.fields import format_value
from gcbench.core.wrappers.build import CONFLICTS, Conflict, refuse_conflicts

NEUTRAL: dict[str, Any] = {
    "adapt_every": None,
    "align": False,
    "bucket_scope": "tensor",
    "code": "fixed",
    "exchange": "gather",
    "rotate": "none",
    "workers_per_node": None,
    "error_feedback": False,
    "alpha": 1,
    "beta": 1,
    "per_layer": False,
    "combine": "mean",
}
OTHERS: dict[str, list[Any]] = {
    "adapt_every": [10],
    "align": [True],
    "bucket_scope": ["gradient"],
    "code": ["ans"],
    "exchange": ["scatter", "scatter_coded", "ring", "hierarchical"],
    "rotate": ["hadamard"],
    "workers_per_node": [2],
    "error_feedback": ["loco", "ef21"],
    "alpha": [0.5],
    "beta": [0.5],
    "per_layer": [True],
    "combine": ["senders"],
}


@each("conflict", CONFLICTS)
def test_a_conflict_needs_all_of_its_settings(conflict: Conflict) -> None:
    bad = {
        key: next(value for value in [*OTHERS[key], NEUTRAL[key]] if holds(value))
        for key, holds in conflict.settings.items()
    }
    typed = " ".join(f"{key}={format_value(value)}" for key, value in bad.items())
    with pytest.raises(ValueError) as refused:
        refuse_conflicts(bad)
    assert str(refused.value) == f"{typed}: {conflict.why}"
    for key, holds in conflict.settings.items():
        good = next(value for value in [NEUTRAL[key], *OTHERS[key]] if not holds(value))
        refuse_conflicts(bad | {key: good})


def test_neutral_settings_have_no_conflict() -> None:
    refuse_conflicts(NEUTRAL)
