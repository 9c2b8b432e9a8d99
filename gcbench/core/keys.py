"""The keys of methods: their order, and those that have no effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gcbench.core.errors import IdleKeyError
from gcbench.core.fields import format_value, hints_of, marks_in
from gcbench.core.marks import Needs
from gcbench.core.method_keys import MethodSettings

FACTS = {"form", "recommended"}  # what a method's file says of it, and nothing computes with
NO_KNOBS = {"compressor", "_target_", *FACTS}
NEEDS = {
    name: mark
    for name, hint in hints_of(MethodSettings).items()
    for mark in marks_in(hint)
    if isinstance(mark, Needs)
}


def sort_keys(keys: Collection[str]) -> list[str]:
    """Return keys of methods in the order of their model, followed by those that it lacks."""
    known = list(MethodSettings.model_fields)
    return sorted(keys, key=lambda key: known.index(key) if key in known else len(known))


def refuse_idle_keys(
    flat: Mapping[str, Any], typed: Collection[str], all_needs: Mapping[str, Needs] = NEEDS
) -> None:
    """Raise IdleKeyError for a typed key that nothing reads: a sweep of it would repeat one run.

    `flat` has the values of a run, or of a method, by key as it is typed.
    """
    for name in sorted(typed):
        if name.partition(".")[0] in FACTS:
            raise IdleKeyError(
                f"{name}: a method's file says this of it, and nothing is computed with it; leave "
                "it out"
            )
    for key, needs in all_needs.items():
        if key in typed and needs.key in flat and not needs.met_by(flat[needs.key]):
            raise IdleKeyError(
                f"{_typed(key, flat[key])} has no effect with {_typed(needs.key, flat[needs.key])};"
                f" type {_typed(needs.key, needs.values[0])} too, or leave it out"
            )


def _typed(key: str, value: Any) -> str:
    """Return `key=value`; the `kind` of a group is typed as its choice."""
    return f"{key.removesuffix('.kind')}={format_value(value)}"
