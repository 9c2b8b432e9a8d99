"""What tells runs apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gcbench.config.errors import Config, ConfigError
from gcbench.knobs import spell

# How and where a run executes and what it writes, but not what it computes: left out of a checkpoint's fingerprint.
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
BOOKKEEPING = {
    "checkpoint_steps",
    "checkpoint_minutes",
    "checkpoint_keep",
    "keep_weights",
    "max_restarts",
    "timeout_seconds",
    "drift_every",
}
OFF = {"checksum", "overlap", "double_buffering"}  # false: as if the key were not there
LENGTH = {"epochs", "max_steps"}  # a run may be extended
WHOLE = (
    "trainer.",
    "optimizer.",
    "schedule.",
)  # nodes that have all their keys whatever the choices
ABSENT = "(absent)"
ELSEWHERE = {
    "needs",
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
}


NAME_HINT = "type a name of printable characters that has no slash and starts with no dot or dash, as in name=first-try"


def is_folder_name(name: str) -> bool:
    """Whether it is one below outputs/, and no option to the commands that people type with it."""
    return (
        bool(name)
        and name.isprintable()
        and not set(name) & set("/\\")
        and name[0] not in ".-"
        and len(name) <= 150
    )


def refuse_name(name: Any) -> None:
    """Before any folder is made of it; what is no text at all is refused with the other knobs."""
    if isinstance(name, str) and not is_folder_name(name):
        raise ConfigError(f"name={name!r}: {NAME_HINT}")


def fingerprint(config: Config) -> str:
    """Equal for runs that may continue each other, wherever and however they execute, and however long they are."""
    return digest(
        what_matters({**config, "network": {}}, EXECUTION | BOOKKEEPING | LENGTH | {"gpus"})
    )


def what_matters(config: Config, trainer_keys: Collection[str] = BOOKKEEPING) -> Config:
    """`config` without what changes no number, nor the trainer's `trainer_keys`."""
    kept = {
        k: v for k, v in config.items() if k not in ELSEWHERE and (k != "network" or v)
    }  # {}: nothing is emulated
    kept["trainer"] = {
        k: v for k, v in config["trainer"].items() if k not in trainer_keys and (k not in OFF or v)
    }
    if not config["trainer"].get("overlap"):  # results of before it have no such key
        kept["trainer"].pop("bucket_mib", None)
    kept["dataset"] = {k: v for k, v in config["dataset"].items() if k not in {"root", "download"}}
    return kept


def digest(value: Any) -> str:
    """Eight hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def differences(
    before: Config, now: Config, trainer_keys: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """Return key to (before, now) where two configurations differ in what matters, without the trainer's `trainer_keys`.

    A key that only `now` has, in a node that has all its keys whatever was chosen, is one that an older gcbench did not know.
    """
    old, new = (dict(leaves(what_matters(config, trainer_keys))) for config in (before, now))
    keys = [key for key in {**old, **new} if old.get(key, ABSENT) != new.get(key, ABSENT)]
    known = [key for key in without_copies(keys) if key in old or not key.startswith(WHOLE)]
    return {key: (old.get(key, ABSENT), new.get(key, ABSENT)) for key in known}


def in_words(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differences as in `bits=4 -> 2, seed=1 -> 2`."""
    return ", ".join(
        f"{key}={spell(before)} -> {spell(now)}" for key, (before, now) in different.items()
    )


def leaves(value: Any, prefix: str = "") -> Any:
    """Yield the dotted keys and values of nested nodes."""
    if not isinstance(value, dict) or not value:
        yield prefix, value
        return
    for key, content in value.items():
        yield from leaves(content, f"{prefix}.{key}" if prefix else key)


def without_copies(keys: Iterable[str]) -> list[str]:
    """What a top-level knob brings into the compressor goes without saying."""
    kept = list(keys)
    knobs = {key for key in kept if "." not in key}
    return [
        key
        for key in kept
        if not (key.startswith("compressor.") and key.rsplit(".", 1)[1] in knobs)
    ]
