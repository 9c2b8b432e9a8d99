"""A check that all processes of a run have the same configuration.

They may differ if the processes were started from several shells or nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcbench.comm.control import Control
from gcbench.config import Config, ConfigError
from gcbench.identity import Flat, iterate_leaves, relevant_config, value_of

# Keys that may differ between processes, as long as these have the same directory, whose name
# contains a hash of them.
ITS_OWN = {"trainer.launcher", "trainer.threads"}
PLACES = ("name", "outputs", "directory")
DIRECTORY = "the run's directory"


def refuse_different_configs(config: Config, directory: Path, control: Control) -> None:
    """Raise ConfigError in all processes, naming the keys, if their configurations differ.

    Every process must call this before any other exchange.
    """
    compared = {**relevant_config(config, ()), **{key: config.get(key) for key in PLACES}}
    # A machine may have the shared folder under another path.
    here = {**dict(iterate_leaves(compared)), DIRECTORY: directory.name}
    differing = describe_differences(control.gather(here))
    if differing.keys() <= ITS_OWN:
        return
    if causes := differing.keys() - ITS_OWN - {DIRECTORY}:
        differing = {key: differing[key] for key in differing if key in causes}
    listed = "; ".join(f"{key} is {values}" for key, values in differing.items())
    or_directory = ", or one directory=DIR" if DIRECTORY in differing else ""
    raise ConfigError(
        f"the processes were given different configurations: {listed}; type the same overrides "
        f"for each{or_directory}"
    )


def describe_differences(by_process: Sequence[Flat]) -> dict[str, str]:
    """Return the keys whose values differ, in order, each with its values in two processes."""
    keys = sorted({key for flat in by_process for key in flat})
    values = {key: [value_of(flat, key) for flat in by_process] for key in keys}
    return {key: _by_process(each) for key, each in values.items() if len({*map(repr, each)}) > 1}


def _by_process(values: list[Any]) -> str:
    # By their texts, as a NaN is not equal to itself.
    other = next(rank for rank, value in enumerate(values) if repr(value) != repr(values[0]))
    return f"{values[0]} in process 0 and {values[other]} in process {other}"
