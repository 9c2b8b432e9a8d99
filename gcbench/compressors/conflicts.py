"""Settings of a compressor that contradict one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gcbench.identity import format_value


class Conflict(NamedTuple):
    """Settings that cannot be combined: each has to be as said here."""

    settings: Mapping[str, Callable[[Any], bool]]
    why: str  # and what to type


def _is(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _is_not(*values: object) -> Callable[[Any], bool]:
    return lambda value: value not in values


CONFLICTS = (
    Conflict(
        {"code": _is_not("fixed"), "exchange": _is_not("gather")},
        "messages that differ in length can only be gathered; type exchange=gather or code=fixed",
    ),
    Conflict(
        {"align": _is(True), "exchange": _is_not("gather")},
        "only gathered codes are aligned; type exchange=gather or align=false",
    ),
    Conflict(
        {"workers_per_node": _is_not(None), "exchange": _is_not("hierarchical")},
        "only a hierarchical exchange has nodes; type exchange=hierarchical",
    ),
    Conflict(
        {"align": _is(True), "bucket_scope": _is("gradient")},
        "buckets that run through the gradient cut receptive fields; type only one of them",
    ),
    Conflict(
        {"per_layer": _is(True), "align": _is(True)},
        "a bucket is either one tensor or a number of receptive fields; type only one of these",
    ),
    Conflict(
        {"per_layer": _is(True), "bucket_scope": _is("gradient")},
        "a bucket is either one tensor or runs through all of them; type only one of these",
    ),
    Conflict(
        {"per_layer": _is(True), "exchange": _is("scatter", "scatter_coded")},
        "tensors are cut into shards, and buckets need them whole; type per_layer=false, or "
        "exchange=gather",
    ),
    Conflict(
        {"error_feedback": _is("loco"), "beta": _is_not(1)},
        "LoCo always keeps the old residual whole; type beta=1 or error_feedback=true",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "alpha": _is_not(1)},
        "EF21 has no residual to weigh; type alpha=1 or error_feedback=true",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "beta": _is_not(1)},
        "EF21 has no residual to weigh; type beta=1 or error_feedback=true",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "exchange": _is("scatter_coded")},
        "means that are coded again differ from the sums that EF21 keeps; type exchange=gather or "
        "scatter",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "combine": _is("senders")},
        "EF21 adds up the mean of what all workers sent, which this is not; type combine=mean or "
        "error_feedback=true",
    ),
)


def refuse_conflicts(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for the first of `CONFLICTS` that the settings have."""
    for conflict in CONFLICTS:
        if all(
            key in settings and holds(settings[key]) for key, holds in conflict.settings.items()
        ):
            typed = " ".join(f"{key}={format_value(settings[key])}" for key in conflict.settings)
            raise ValueError(f"{typed}: {conflict.why}")
