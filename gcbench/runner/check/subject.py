"""The subject of the checks: a class by its dotted name, or a choice of conf/compressor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.runner.config.compose import compose_overrides, method_node
from gcbench.runner.config.resolve import resolve

# Settings with which every method is tried, as far as it has the keys. Buckets are smaller than the
# gradients of the checks.
SETTINGS: dict[str, dict[str, Any]] = {
    "all tensors": {"min_size": 0, "min_ratio": 0, "bucket_size": 16, "error_feedback": False},
    "small tensors whole": {"min_size": 100, "bucket_size": 16},
    "error feedback": {
        "error_feedback": True,
        "min_size": 0,
        "min_ratio": 0,
        "bucket_size": 16,
    },
}


class Subject(NamedTuple):
    """The config node of a compressor as it was typed, and with other settings."""

    typed: Config
    # Keyed by the overrides that make the other settings. The first case only lets small tensors be
    # compressed, too, as the tensors of the checks are small.
    cases: dict[str, Config]


def subject_of(
    targets: Sequence[str], settings: Sequence[str], config_dir: str | None = None
) -> Subject:
    """Return the subject of `my_package.MyMethod rank=2`, or of `compressor=mine rank=2`."""
    if not targets and not settings:
        raise ConfigError("nothing was asked for; type my_package.MyMethod, or compressor=NAME")
    if len(targets) > 1:
        raise ConfigError(f"{targets[1]}: type {targets[0]}'s settings as key=value, as in rank=2")
    if targets and "." not in targets[0]:
        raise ConfigError(
            f"{targets[0]}: a class is typed with its module, as in my_package.MyMethod; for a "
            f"method of conf/compressor, type compressor={targets[0]}"
        )
    return _of_target(targets[0], settings) if targets else _of_choice(settings, config_dir)


def _of_target(target: str, settings: Sequence[str]) -> Subject:
    node = {
        "_target_": "gcbench.build",
        "method": method_node(target, settings),
    }
    changes = _changes({"min_size": 0, "error_feedback": False})
    return Subject(node, {_overrides(change): {**node, **change} for change in changes})


def _of_choice(overrides: Sequence[str], config_dir: str | None) -> Subject:
    config = resolve(compose_overrides(overrides, config_dir))
    typed = {override.lstrip("+~").split("=", 1)[0] for override in overrides}
    cases = {}
    for change in _changes({k: v for k, v in config.as_dict().items() if k not in typed}):
        label = _overrides(change)
        changed = compose_overrides([*overrides, *label.split()], config_dir)
        cases[label] = resolve(changed).compressor
    return Subject(config.compressor, cases)


def _changes(now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each case, its settings that differ from those of `now`."""
    return [
        {k: v for k, v in settings.items() if k in now and now[k] != v}
        for settings in ({"min_size": 0, "min_ratio": 0}, *SETTINGS.values())
    ]


def _overrides(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}".lower() for k, v in settings.items())
