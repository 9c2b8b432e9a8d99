"""Tests of many cases, of which few are fast and all others slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import Any

import pytest


def slow_but(fast: Collection[Any], cases: Sequence[Any]) -> list[Any]:
    """Return the cases as parameters, all marked slow except the `fast` ones."""
    assert all(case in cases for case in fast), "a fast case is none of the cases"
    marks = [() if case in fast else pytest.mark.slow for case in cases]
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*values, marks=mark) for values, mark in zip(tuples, marks, strict=True)]


def loop_over(
    fast: Collection[tuple[Any, ...]], cases: Sequence[tuple[Any, ...]] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make one test of all fast cases with the same first value, and a slow one of the others.

    pytest takes longer to collect thousands of tests than to run them. The case that fails is the
    last one printed.
    """
    cases = cases or list(fast)
    assert all(case in cases for case in fast), "a fast case is none of the cases"
    groups: dict[tuple[str, bool], list[tuple[Any, ...]]] = {}
    for case in cases:
        groups.setdefault((str(case[0]), case in fast), []).append(case)
    parameters = [
        pytest.param(
            group, id=first if quick else f"{first}, all", marks=() if quick else pytest.mark.slow
        )
        for (first, quick), group in groups.items()
    ]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        taken = list(signature(test).parameters.values())
        fixtures = taken[len(cases[0]) :]

        @wraps(test)
        def loop(group: Sequence[tuple[Any, ...]], **given: Any) -> None:
            for case in group:
                print(*case)
                test(*case, **given)

        group = taken[0].replace(name="group")
        loop.__signature__ = Signature([group, *fixtures])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("group", parameters)(loop)

    return decorate
