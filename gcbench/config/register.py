"""Registration with Hydra of the schemas, and of the functions that conf/ calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from gcbench.config.checks import WITH_KEYS_BY_CHOICE
from gcbench.config.help import list_choices, list_keys, list_method_knobs
from gcbench.config.run_name import bench_name, run_directory, sweep_subdirectory
from gcbench.settings.config import SCHEMAS
from gcbench.settings.run import BenchSettings, RunSettings


def register() -> None:
    """Register schemas and resolvers with Hydra; safe to call twice."""
    # Our files for these launchers replace the plugin's own, and Hydra warns five times that this
    # is deprecated.
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/submitit_")
    _store_schemas()
    resolvers: dict[str, Callable[..., str | int]] = {
        "levels": _levels_of_bits,
        "sweep_subdirectory": lambda *, _root_: sweep_subdirectory(_root_),
        "bench_name": lambda *, _root_: bench_name(_root_),
        "run_directory": lambda *, _root_: run_directory(_root_),
        "knobs": list_method_knobs,
        "keys": list_keys,
        "choices": list_choices,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(f"gcbench.{name}", resolver, replace=True)


@cache
def _store_schemas() -> None:
    for name, keys in {"run_keys": RunSettings(), "bench_keys": BenchSettings()}.items():
        ConfigStore.instance().store(name=name, node=keys.model_dump())
    for group, schema in SCHEMAS.items():
        if group not in WITH_KEYS_BY_CHOICE:
            ConfigStore.instance().store(group=group, name="schema", node=schema().model_dump())


def _levels_of_bits(bits: Any) -> int:
    if isinstance(bits, int) and 2 <= bits <= 8:
        return int(2 ** (bits - 1) - 1)
    return 7  # arbitrary, as these `bits` are refused later
