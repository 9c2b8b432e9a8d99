"""Runs from a script or a notebook."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch

from gcbench.core.codecs.kernels import keep_backend
from gcbench.core.errors import ConfigError
from gcbench.runner.config.checks import refuse_twice
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.config.naming import notices_of
from gcbench.runner.config.typed import to_overrides
from gcbench.runner.differences import differences, format_differences
from gcbench.runner.identity import BOOKKEEPING, LENGTH, SWEPT
from gcbench.runner.launch.start import start
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.schema import Result
from gcbench.runner.settings.config import RunConfig

log = logging.getLogger("gcbench")


def run(*overrides: str, **keys: Any) -> Result:
    """Run what `gcbench` would run for these overrides, and return its result.

        result = gcbench.run("model=resnet20", "dataset=cifar10", "compressor=qsgd", bits=4)
        print(result.test["accuracy"], result.bits_sent.ratio)

    Several workers are processes on this machine, as with the command. They do not run your script
    again, so it needs no `if __name__ == "__main__":`; but a model, data set or method of your own
    must be in a module that they can import, not in the script or the notebook. Type
    "hydra.searchpath=[file://my_conf]" before the choice of a method in `my_conf/compressor`. A run
    whose result is in `outputs` is not run again, and an interrupted one is continued.

    Args:
        *overrides: overrides as on the command line of `gcbench`.
        **keys: overrides as Python values: `bits=4` means `"bits=4"`. Keys with dots are passed as
            in `**{"trainer.workers": 4}`.

    Returns:
        The content of `result.json`.

    Raises:
        ConfigError: if an override is wrong; nothing has started then.
        RunFailed: if the run failed or diverged.
        KeyboardInterrupt: if it was interrupted; the same call continues it.
    """
    config, directory = resolve_overrides(_join(overrides, keys))
    return _run(config, directory)


def sweep(*overrides: str, **keys: Any) -> list[Result]:
    """Run every point of a grid, one by one, and return the results in the order of the grid.

        results = gcbench.sweep("compressor=qsgd", bits=[2, 4, 8], seed=[1, 2, 3])  # nine runs

    Points that have a result are not run again. A run that fails or diverges does not end the
    sweep; the `status` of its result is not "done".

    Args:
        *overrides: overrides as on the command line of `gcbench`, the same for all points.
        **keys: overrides as Python values. A list or a range is an axis of the grid, whose last
            key changes fastest; a tuple is a single value, as in `scales=(2, 6)`.

    Raises:
        ConfigError: if an override of any point is wrong; nothing has started then.
        KeyboardInterrupt: if it was interrupted; the same call continues it.
    """
    grid = [value if isinstance(value, (list, range)) else [value] for value in keys.values()]
    axes = zip(keys, grid, strict=True)
    os.environ[SWEPT] = ",".join(key for key, values in axes if len(values) > 1)
    points = [resolve_overrides(_join(overrides, point)) for point in _points(keys, grid)]
    if not points:
        empty = next(key for key, values in zip(keys, grid, strict=True) if not values)
        raise ConfigError(f"{empty}=[]: type at least one value")
    _refuse_one_directory(points)
    return [_run_or_read(config, directory) for config, directory in points]


def _join(overrides: Sequence[str], keys: Mapping[str, Any]) -> list[str]:
    """Return all overrides as on the command line; raise an error for what is typed twice."""
    typed = list(overrides)
    for override in overrides:
        if not isinstance(override, str):
            raise TypeError(
                f"{override!r}: type overrides as texts ('bits=4') or keywords (bits=4)"
            )
        if override.startswith("-"):
            raise ConfigError(
                f"{override}: options belong to the command line; type gcbench.sweep for -m, and "
                "'hydra.searchpath=[file://my_conf]' for --config-dir my_conf"
            )
    typed += to_overrides(keys)
    refuse_twice(typed, sweep=True)
    return typed


def _points(keys: Mapping[str, Any], grid: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(keys, values, strict=True)) for values in product(*grid)]


def _refuse_one_directory(points: Sequence[tuple[RunConfig, str]]) -> None:
    """Raise ConfigError if different runs would write to one directory; longer ones extend it."""
    first: dict[str, RunConfig] = {}
    for config, directory in points:
        before = first.setdefault(directory, config)
        differs = differences(before.as_dict(), config.as_dict(), BOOKKEEPING | LENGTH)
        if differs and not config.rerun:
            raise ConfigError(
                f"directory={directory}: points of this sweep differ "
                f"({format_differences(differs)}), and each needs a directory of its own; type "
                "outputs= instead"
            )


def _run(config: RunConfig, directory: str) -> Result:
    for notice in notices_of(config):
        log.warning(notice)
    with _keep_settings_of_torch(), keep_backend():
        start(config, directory)
    return _read(directory)


@contextmanager
def _keep_settings_of_torch() -> Iterator[None]:
    """Restore torch's random numbers and threads, which a run with one process sets in this one.

    Otherwise a script would draw the same numbers after every run, and go on with its threads.
    """
    threads = torch.get_num_threads()
    # Asking for the state of a GPU would create a context on it, and workers need the memory.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        torch.set_num_threads(threads)


def _run_or_read(config: RunConfig, directory: str) -> Result:
    """Return the result of a run, even if it failed."""
    try:
        return _run(config, directory)
    except RunFailed as error:
        log.warning("%s: %s", directory, error)
        if result := RunFiles(Path(directory)).read_result():
            return result
        raise  # its result could not be written


def _read(directory: str) -> Result:
    result = RunFiles(Path(directory)).read_result()
    assert result is not None  # every run that is done leaves one
    return result
