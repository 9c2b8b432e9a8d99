"""Parametrized tests with a few fast cases; all others are slow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def slow_but(fast: Collection[Any], cases: Sequence[Any]) -> list[Any]:
    """Return the cases as parameters, all marked slow except the `fast` ones."""
    assert all(case in cases for case in fast), "a fast case is none of the cases"
    marks = [() if case in fast else pytest.mark.slow for case in cases]
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*values, marks=mark) for values, mark in zip(tuples, marks, strict=True)]
