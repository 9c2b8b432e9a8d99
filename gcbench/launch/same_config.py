"""A check that all processes of a run have the same configuration.

They may differ if the processes were started from several shells or nodes.
"""

from __future__ import annotations

from typing import Any

from gcbench.comm import Control
from gcbench.config import Config, ConfigError
from gcbench.identity import iterate_leaves, relevant_config, value_of

ITS_OWN = {"launcher", "threads"}  # keys of `trainer` that may differ between processes
PLACES = ("name", "outputs", "directory")


def refuse_different_configs(config: Config, control: Control) -> None:
    """Raise ConfigError in all processes, naming the keys, if their configurations differ.

    Every process must call this before any other exchange.
    """
    compared = {**relevant_config(config, ITS_OWN), **{key: config.get(key) for key in PLACES}}
    everyone = control.gather(dict(iterate_leaves(compared)))
    keys = sorted({key for flat in everyone for key in flat})
    values = {key: [value_of(flat, key) for flat in everyone] for key in keys}
    differing = {k: v for k, v in values.items() if any(value != v[0] for value in v)}
    if differing:
        listed = "; ".join(f"{key} is {_by_process(values)}" for key, values in differing.items())
        raise ConfigError(
            f"the processes were given different configurations: {listed}; type the same "
            "overrides for each"
        )


def _by_process(values: list[Any]) -> str:
    other = next(rank for rank, value in enumerate(values) if value != values[0])
    return f"{values[0]} in process 0 and {values[other]} in process {other}"
