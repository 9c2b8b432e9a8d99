"""Tests of many cases, of which few are fast and all others slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import Any

import pytest

SLOW_TESTS = 4  # of further cases


def slow_but(fast: Collection[Any], cases: Sequence[Any]) -> list[Any]:
    """Return the cases as parameters, all marked slow except the `fast` ones."""
    assert all(case in cases for case in fast), "a fast case is none of the cases"
    marks = [() if case in fast else pytest.mark.slow for case in cases]
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*values, marks=mark) for values, mark in zip(tuples, marks, strict=True)]


def each(
    names: str | tuple[str, ...], cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with each case in turn, as one test.

    The arguments are those of `pytest.mark.parametrize`, which would make a test of each case:
    pytest takes longer to collect thousands of tests than to run them. The case that fails is the
    last one printed.
    """
    keys = (names,) if isinstance(names, str) else names
    values = [case if len(keys) > 1 else (case,) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def loop(**given: Any) -> None:
            for case in values:
                print(*case)
                test(**given, **dict(zip(keys, case, strict=True)))

        others = [p for name, p in signature(test).parameters.items() if name not in keys]
        loop.__signature__ = Signature(others)  # type: ignore[attr-defined]
        return loop

    return decorate


def loop_over(
    fast: Collection[tuple[Any, ...]], cases: Sequence[tuple[Any, ...]] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make one test of all fast cases with the same first value, and a few slow ones of the others.

    The case that fails is the last one printed.
    """
    cases = cases or list(fast)
    assert all(case in cases for case in fast), "a fast case is none of the cases"
    quick, firsts = set(fast), list(dict.fromkeys(str(case[0]) for case in cases))
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for case in cases:
        first = str(case[0])
        name = first if case in quick else f"others {firsts.index(first) % SLOW_TESTS}"
        groups.setdefault(name, []).append(case)
    parameters = [
        pytest.param(group, id=name, marks=pytest.mark.slow if group[0] not in quick else ())
        for name, group in groups.items()
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
