"""The identity of a run: the part of its configuration that changes numbers, and the hash of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

Config = dict[str, Any]
Flat = dict[str, Any]  # by dotted key
Differences = dict[str, tuple[Any, Any]]  # dotted key to (before, now)

# Keys of `trainer`: how and where a run executes, but not what it computes.
EXECUTION = {
    "launcher",
    "nodes",
    "device",
    "backend",
    "processes",
    "threads",
    "codec_backend",
    "record_gradients",
    "overlap",
    "bucket_mib",
}
# Keys of `trainer`: what a run writes, and how it is watched.
BOOKKEEPING = {
    "checkpoint_steps",
    "checkpoint_minutes",
    "checkpoint_keep",
    "keep_weights",
    "max_restarts",
    "timeout_seconds",
    "drift_every",
    "tta",
}
LENGTH = {"epochs", "max_steps"}  # keys of `trainer` that an extension of a run changes
# Top-level keys that say where results go and what they are called.
ELSEWHERE = {
    "needs",
    "needed_files",
    "budget",
    "outputs",
    "directory",
    "rerun",
    "resume",
    "logger",
    "name",
    "data",
    "choices",
    "experiment",
    "knobs",
}
# A key that came after runs were kept, with the value that means what gcbench did before: a
# configuration with that value is the same as one without the key.
NEUTRAL = {
    "checksum": False,
    "overlap": False,
    "double_buffering": False,
    "bucket_scope": "tensor",
    "warmup_start": None,
    "momentum_start": "zero",
    "network": {},
    "interval": "step",
    "groups": [],
    "updates_per_interval": None,
    "crop_padding": 4,
    "crop_fill": "zeros",
    "flip": "random",
    "label_smoothing": 0.0,
    "end_factor": 0.0,
}
ABSENT = "(absent)"
CHOICE_GROUPS = ("model", "dataset", "compressor")  # groups of conf/ that say what a run is of


def relevant_config(config: Config, ignored: Collection[str] = BOOKKEEPING) -> Config:
    """Return what changes a run's numbers in `config`, less `ignored` keys of the trainer."""
    relevant = {key: value for key, value in config.items() if key not in ELSEWHERE}
    trainer = {key: value for key, value in config["trainer"].items() if key not in ignored}
    if not config["trainer"].get("overlap"):
        trainer.pop("bucket_mib", None)  # which only overlapped exchanges use
    dataset = {k: v for k, v in config["dataset"].items() if k not in {"root", "download"}}
    stripped: Config = _drop_neutral({**relevant, "trainer": trainer, "dataset": dataset})
    return stripped


def clear_folders(config: Config) -> Config:
    """Return `config` without folders of the machine that made it, which mean nothing elsewhere."""
    cleared: Config = {key: None for key in ("outputs", "directory", "data") if key in config}
    dataset = config["dataset"] | ({"root": None} if "root" in config["dataset"] else {})
    return {**config, **cleared, "dataset": dataset}


def identify(
    config: Config,
    extended_from: Sequence[int] = (),
    resharded: Sequence[tuple[int, int]] = (),
) -> str:
    """Return the identity of a run: equal for runs of one computation, whatever seed and place.

    Args:
        config: the resolved configuration.
        extended_from: the steps at which shorter runs had ended that became this one.
        resharded: the steps from which it had another number of workers, and those before.
    """
    relevant = relevant_config(config, EXECUTION | BOOKKEEPING)
    relevant.pop("seed", None)
    if resharded:
        return digest([relevant, list(extended_from), list(resharded)])
    return digest([relevant, list(extended_from)] if extended_from else relevant)


def fingerprint(config: Config) -> str:
    """Return a hash that is equal for runs that may continue each other, wherever they execute."""
    ignored = EXECUTION | BOOKKEEPING | LENGTH | {"gpus"}
    return digest(relevant_config({**config, "network": {}}, ignored))


def digest(value: Any) -> str:
    """Return eight hexadecimal digits that are equal for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def flatten_config(config: Config) -> Flat:
    """Return by dotted key what changes numbers, without seed, place and manner of execution."""
    relevant = relevant_config(config, EXECUTION | BOOKKEEPING)
    return dict(iterate_leaves({key: value for key, value in relevant.items() if key != "seed"}))


def all_knobs(config: Config) -> Flat:
    """Return by dotted key everything that is typed of a run, without seed and place."""
    nodes = {key: node for key, node in config.items() if key not in {*ELSEWHERE, "seed"}}
    return dict(iterate_leaves(nodes))


def differences(before: Config, now: Config, ignored: Collection[str]) -> Differences:
    """Return where two configurations differ, without `ignored` keys of the trainer."""
    return flat_differences(
        *(dict(iterate_leaves(relevant_config(config, ignored))) for config in (before, now))
    )


def flat_differences(before: Flat, now: Flat) -> Differences:
    """Return the dotted keys that differ, each with both values."""
    pairs = {key: (value_of(before, key), value_of(now, key)) for key in {**before, **now}}
    return {key: pairs[key] for key in drop_copies(k for k, (a, b) in pairs.items() if a != b)}


def format_differences(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differences as in `bits=4 -> 2, seed=1 -> 2`."""
    return ", ".join(
        f"{key}={format_value(before)} -> {format_value(now)}"
        for key, (before, now) in different.items()
    )


def as_overrides(different: Differences) -> list[str]:
    """Return the first side of differences as it was typed.

    The numbers of a link follow the override that brings them; what only the other side has comes
    with its model or method.
    """
    links = [pair for key, pair in different.items() if key.startswith("network.")]
    overrides = [f"{key}={format_value(a)}" for key, (a, _) in different.items() if a != ABSENT]
    if any(before == ABSENT for before, _ in links):
        return ["network=none", *overrides]
    return ["network=emulated", *overrides] if any(now == ABSENT for _, now in links) else overrides


def tell_apart(peers: Sequence[Flat], fewest: bool = False) -> list[list[str]]:
    """Return the overrides, for each of `peers`, by which it differs from the others.

    These are its values of all keys in which any two of them differ, as they were typed, or of the
    `fewest` that tell all apart.
    """
    keys = sort_knobs({key for flat in peers for key in flat})
    differing = drop_copies(
        key
        for key in keys
        if any(flat.get(key, ABSENT) != peers[0].get(key, ABSENT) for flat in peers)
    )
    if {"bits", "levels"} <= {*differing}:  # one follows from the other, and several may share bits
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
    """Return how many kinds the values of these keys tell apart."""
    return len({repr([flat.get(key, ABSENT) for key in keys]) for flat in peers})


def sort_knobs(keys: Iterable[str]) -> list[str]:
    """Return dotted keys, those of a method and groups first."""
    return sorted(keys, key=lambda key: ("." in key, key))


def describe_choices(choices: Mapping[str, str]) -> str:
    """Return what a run is made of, as in `resnet18 cifar10 powersgd`."""
    return " ".join(choices[group] for group in CHOICE_GROUPS)


def label_run(config: Config, knobs: Iterable[str] = ()) -> str:
    """Return what people call a run: its name, its experiment or its choices, and its knobs.

    Args:
        config: with `choices` and `experiment`.
        knobs: overrides that tell the run from others so called, as in `bits=4`.
    """
    title = config.get("name") or config["experiment"] or describe_choices(config["choices"])
    return " ".join([title, *knobs])


def iterate_leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of nested nodes."""
    if not isinstance(value, dict) or not value:
        yield prefix, value
        return
    for key, content in value.items():
        yield from iterate_leaves(content, f"{prefix}.{key}" if prefix else key)


def drop_copies(keys: Iterable[str]) -> list[str]:
    """Return `keys` without those by which a top-level knob reaches the compressor."""
    listed = list(keys)
    knobs = {key for key in listed if "." not in key}
    return [
        key
        for key in listed
        if not (key.startswith("compressor.") and key.rpartition(".")[2] in knobs)
    ]


def format_value(value: Any) -> str:
    """Return `value` as it is typed on a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{format_value(v)}' for key, v in value.items())}}}"
    return str(value)


def _drop_neutral(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    return {
        key: _drop_neutral(value)
        for key, value in node.items()
        if key not in NEUTRAL or value != NEUTRAL[key]
    }


def value_of(flat: Flat, key: str) -> Any:
    """Return the value of a dotted key; of a missing one its default in NEUTRAL, or ABSENT."""
    return flat.get(key, NEUTRAL.get(key.rpartition(".")[2], ABSENT))
