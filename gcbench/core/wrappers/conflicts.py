"""Settings of a method's wrappers that cannot be combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gcbench.core.fields import format_value


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
        {"rotate": _is("hadamard"), "align": _is(True)},
        "a rotation mixes receptive fields; type only one of them",
    ),
    Conflict(
        {"rotate": _is("hadamard"), "exchange": _is("scatter_coded")},
        "what a shard's owner keeps for the next step would be of another rotation; type "
        "exchange=scatter or gather",
    ),
    Conflict(
        {"adapt_every": _is_not(None), "bucket_scope": _is("gradient")},
        "bits are chosen by tensor, and these buckets span tensors; type only one of them",
    ),
    Conflict(
        {"adapt_every": _is_not(None), "code": _is_not("fixed")},
        "lengths that follow from values have no budget; type code=fixed or adapt_every=null",
    ),
    Conflict(
        {"adapt_every": _is_not(None), "exchange": _is("scatter_coded")},
        "an owner's residual would be of other tensors after a choice; type exchange=scatter",
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
        {"per_layer": _is(True), "exchange": _is("scatter", "scatter_coded", "ring")},
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
        {"error_feedback": _is("ef21"), "exchange": _is("ring")},
        "sums that are coded again at every hop differ from those that EF21 keeps; type "
        "exchange=gather, scatter or scatter_coded",
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
