"""What tells runs apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from gcbench.config.errors import Config, ConfigError

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
BOOKKEEPING = {"checkpoint_steps", "checkpoint_minutes", "checkpoint_keep", "max_restarts", "timeout_seconds", "drift_every"}
OFF = {"checksum", "overlap", "double_buffering"}  # false: as if the key were not there
ELSEWHERE = {"needs", "budget", "outputs", "directory", "rerun", "resume", "logger", "name", "data", "choices", "experiment"}


NAME_HINT = "type a name of printable characters that has no slash and starts with no dot or dash, as in name=first-try"


def is_folder_name(name: str) -> bool:
    """Whether it is one below outputs/, and no option to the commands that people type with it."""
    return bool(name) and name.isprintable() and not set(name) & set("/\\") and name[0] not in ".-" and len(name) <= 150


def refuse_name(name: Any) -> None:
    """Before any folder is made of it; what is no text at all is refused with the other knobs."""
    if isinstance(name, str) and not is_folder_name(name):
        raise ConfigError(f"name={name!r}: {NAME_HINT}")


def fingerprint(config: Config) -> str:
    """Equal for runs that compute the same numbers, wherever and however they execute."""
    return digest(what_matters({**config, "network": {}}, EXECUTION | BOOKKEEPING | {"gpus"}))


def what_matters(config: Config, trainer_keys: Collection[str] = BOOKKEEPING) -> Config:
    """`config` without what changes no number, nor the trainer's `trainer_keys`."""
    kept = {k: v for k, v in config.items() if k not in ELSEWHERE and (k != "network" or v)}  # {}: nothing is emulated
    kept["trainer"] = {k: v for k, v in config["trainer"].items() if k not in trainer_keys and (k not in OFF or v)}
    if not config["trainer"].get("overlap"):  # results of before it have no such key
        kept["trainer"].pop("bucket_mib", None)
    kept["dataset"] = {k: v for k, v in config["dataset"].items() if k not in {"root", "download"}}
    return kept


def digest(value: Any) -> str:
    """Eight hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
