"""Every key of a choice in conf/compressor reaches its method."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import Any

import pytest
from knob_values import inside
from method_cases import CHOICES, build_unchecked, compose_method, keys_of

from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.fields import hints_of
from gcbench.core.method_files import FACTS
from gcbench.core.method_keys import MethodSettings

# The settings without which a key has no effect.
NEEDED = {
    "alpha": {"error_feedback": True},
    "beta": {"error_feedback": True},
    "reset_steps": {"error_feedback": "loco"},
    "workers_per_node": {"exchange": "hierarchical"},
}
HINTS = hints_of(MethodSettings)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_key_of_a_choice_changes_its_method(choice: str) -> None:
    keys, now = keys_of(choice).keys() - FACTS, compose_method(choice)
    assert build_quietly(choice, {}) == build_quietly(choice, {})
    for key in keys:
        needed = {k: v for k, v in NEEDED.get(key, {}).items() if k in keys}
        before = build_quietly(choice, needed)
        others = [value for value in inside(HINTS[key]) if value not in (now[key], None)]
        admitted = filter(
            None, (build_if_admitted(choice, {**needed, key: value}) for value in others)
        )
        built = list(islice(admitted, 2))
        assert built, f"no other value of {key} is admitted"
        assert all(compressor != before for compressor in built), key


def build_if_admitted(choice: str, settings: dict[str, Any]) -> Compressor | None:
    """Return the compressor, or None if the method does not admit one of the settings."""
    try:
        return build_quietly(choice, settings)
    except ConfigError:
        return None


def build_quietly(choice: str, settings: dict[str, Any]) -> Compressor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings that a residual may grow
        return build_unchecked(choice, settings)
