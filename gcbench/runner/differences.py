"""How configurations differ, in words and in overrides, and what a run is called by."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gcbench.core.fields import format_value
from gcbench.runner.identity import (
    ABSENT,
    NEUTRAL,
    Config,
    Flat,
    _flatten,
    finite,
    relevant_config,
)
from gcbench.runner.settings.groups import is_ours

CHOICE_GROUPS = ("model", "dataset", "compressor")  # groups of conf/ that describe a run
Differences = dict[str, tuple[Any, Any]]  # dotted key to (before, now)


def differences(before: Config, now: Config, ignored: Collection[str]) -> Differences:
    """Return the differences of two configurations, without `ignored` trainer keys."""
    return flat_differences(*(_flatten(relevant_config(one, ignored)) for one in (before, now)))


def flat_differences(before: Flat, now: Flat) -> Differences:
    """Return the dotted keys that differ, each with both values."""
    pairs = {key: (value_of(before, key), value_of(now, key)) for key in {**before, **now}}
    # A kept configuration has None for NaN.
    return {key: (a, b) for key, (a, b) in pairs.items() if finite(a) != finite(b)}


def format_differences(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differences as text, for example `bits=4 -> 2, seed=1 -> 2`."""
    return ", ".join(
        f"{key}={format_value(before)} -> {format_value(now)}"
        for key, (before, now) in different.items()
    )


def value_of(flat: Flat, key: str) -> Any:
    """Return the value of a dotted key; if it is missing, that in NEUTRAL, or else ABSENT."""
    node, _, name = key.rpartition(".")
    ours = is_ours(flat.get(f"{node}._target_"))
    return flat.get(key, NEUTRAL.get(name, ABSENT) if ours else ABSENT)


def as_overrides(different: Differences) -> list[str]:
    """Return the overrides that set the first side of the differences.

    Values of an emulated link follow the `network=` override that they need. Keys that only the
    second side has are left out, as they belong to its model or method.
    """
    links = [pair for key, pair in different.items() if key.startswith("network.")]
    overrides = [f"{key}={format_value(a)}" for key, (a, _) in different.items() if a != ABSENT]
    if any(before == ABSENT for before, _ in links):
        return ["network=none", *overrides]
    return ["network=emulated", *overrides] if any(now == ABSENT for _, now in links) else overrides


def tell_apart(peers: Sequence[Flat], fewest: bool = False) -> list[list[str]]:
    """Return, for each of `peers`, the overrides that distinguish it from the others.

    They are its values of all keys in which any two peers differ or, with `fewest`, of only as
    many keys as it takes to distinguish all.
    """
    keys = sort_knobs({key for flat in peers for key in flat})
    keys.sort(key=lambda key: key not in CHOICE_GROUPS)  # which say more than any knob of theirs
    differing = [
        key
        for key in keys
        if any(flat.get(key, ABSENT) != peers[0].get(key, ABSENT) for flat in peers)
    ]
    if {"bits", "levels"} <= {*differing}:  # one of them suffices, as levels determine bits
        bits, levels = ({str(flat.get(key)) for flat in peers} for key in ("bits", "levels"))
        differing.remove("levels" if len(levels) <= len(bits) else "bits")
    if fewest:
        enough: list[str] = []
        for key in differing:
            if _count_kinds(peers, [*enough, key]) > _count_kinds(peers, enough):
                enough.append(key)
        differing = enough
    return [
        as_overrides({key: (flat[key], None) for key in differing if key in flat}) for flat in peers
    ]


def _count_kinds(peers: Sequence[Flat], keys: Sequence[str]) -> int:
    """Return how many different combinations of these keys' values the peers have."""
    return len({repr([flat.get(key, ABSENT) for key in keys]) for flat in peers})


def sort_knobs(keys: Iterable[str]) -> list[str]:
    """Return dotted keys in order, top-level ones first."""
    return sorted(keys, key=lambda key: ("." in key, key))


def describe_choices(choices: Mapping[str, str]) -> str:
    """Return model, data set and compressor, for example `resnet18 cifar10 powersgd`."""
    return " ".join(choices[group] for group in CHOICE_GROUPS)


def label_run(config: Config, knobs: Iterable[str]) -> str:
    """Return a label for a run: its name, its experiment or its choices, and then `knobs`.

    Args:
        config: a configuration with `choices` and `experiment`.
        knobs: overrides that distinguish the run from others of that name, for example `bits=4`.
    """
    title = config.get("name") or config["experiment"] or describe_choices(config["choices"])
    return " ".join([title, *knobs])
