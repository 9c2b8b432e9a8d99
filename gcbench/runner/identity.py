"""The identity of a run: the part of its configuration that affects its numbers, and a hash."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Sequence
from typing import Any

from gcbench.runner.kept_names import with_first_names
from gcbench.runner.settings import groups
from gcbench.runner.settings.config import keys_of, neutral_values
from gcbench.runner.settings.groups import is_ours

Config = dict[str, Any]
Flat = dict[str, Any]  # dotted key to value
EXECUTION = keys_of("trainer", groups.EXECUTION)
BOOKKEEPING = keys_of("trainer", groups.BOOKKEEPING)
LENGTH = keys_of("trainer", groups.LENGTH)
ELSEWHERE = keys_of("", groups.ELSEWHERE)
PLACES = keys_of("dataset", groups.ELSEWHERE)
NEUTRAL = neutral_values()
ABSENT = "(absent)"
SWEPT = "GCBENCH_SWEPT"  # the environment variable with the keys that a sweep varies


def relevant_config(config: Config, ignored: Collection[str] = BOOKKEEPING) -> Config:
    """Return the part of `config` that affects a run's numbers, without `ignored` trainer keys."""
    relevant = {key: value for key, value in config.items() if key not in ELSEWHERE}
    trainer = {key: value for key, value in config["trainer"].items() if key not in ignored}
    if not config["trainer"].get("overlap"):
        trainer.pop("bucket_mib", None)  # used by overlapped exchanges only
    dataset = {k: v for k, v in config["dataset"].items() if k not in _places(config["dataset"])}
    stripped: Config = _drop_neutral({**relevant, "trainer": trainer, "dataset": dataset})
    return stripped


def clear_folders(config: Config) -> Config:
    """Return `config` without its folders, which mean nothing on another machine."""
    cleared: Config = {key: None for key in ("outputs", "directory", "data") if key in config}
    dataset = config["dataset"]
    without = {"root": None} if "root" in dataset and "root" in _places(dataset) else {}
    return {**config, **cleared, "dataset": dataset | without}


def _places(dataset: Config) -> Collection[str]:
    """Return the keys of a data set that say where its files are, but not what is in them."""
    return PLACES if is_ours(dataset.get("_target_")) else ()


def identify(
    config: Config,
    extended_from: Sequence[int] = (),
    resharded: Sequence[tuple[int, int]] = (),
) -> str:
    """Return the identity of a run: a hash that ignores its seed and where it executes.

    Args:
        config: the resolved configuration.
        extended_from: the steps at which shorter runs ended that were extended into this one.
        resharded: each step from which it had another number of workers, with the number before.
    """
    relevant = with_first_names(_without_seed(config))
    if resharded:
        return digest([relevant, list(extended_from), list(resharded)])
    return digest([relevant, list(extended_from)] if extended_from else relevant)


def fingerprint(config: Config) -> str:
    """Return a hash that is equal for runs that may continue each other, wherever they execute."""
    ignored = EXECUTION | BOOKKEEPING | LENGTH | {"workers"}
    return digest(with_first_names(relevant_config({**config, "network": {}}, ignored)))


def digest(value: Any) -> str:
    """Return eight hexadecimal digits that are equal for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def flatten_config(config: Config) -> Flat:
    """Return the settings that affect numbers by dotted key, without seed and execution."""
    return _flatten(_without_seed(config))


def _without_seed(config: Config) -> Config:
    relevant = relevant_config(config, EXECUTION | BOOKKEEPING)
    return {key: node for key, node in relevant.items() if key != "seed"}


def all_knobs(config: Config) -> Flat:
    """Return all settings of a run by dotted key, without its seed and where its results go."""
    return _flatten({k: node for k, node in config.items() if k not in {*ELSEWHERE, "seed"}})


def _flatten(config: Config) -> Flat:
    """Return values by dotted key, without the compressor's arguments that top-level keys fill."""
    return {
        key: value
        for key, value in leaves(config).items()
        if not (key.startswith("compressor.") and key.rpartition(".")[2] in config)
    }


def finite(value: Any) -> Any:
    """Return the value with None for NaN and infinity, which JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(content) for key, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(content) for content in value]
    return value


def leaves(node: Config) -> Flat:
    """Return the values in nested nodes by dotted key; an empty node is a value."""
    found: Flat = {}
    _collect(node, "", found)
    return found


def _collect(node: Config, prefix: str, found: Flat) -> None:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            _collect(value, f"{prefix}{key}.", found)
        else:
            found[f"{prefix}{key}"] = value


def _drop_neutral(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    ours = is_ours(node.get("_target_"))
    return {
        key: _drop_neutral(value)
        for key, value in node.items()
        if not ours or key not in NEUTRAL or value != NEUTRAL[key]
    }
