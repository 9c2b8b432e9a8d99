"""Runs and benchmarks as Hydra starts them."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.runner.command.help import help_of, help_on, short_help
from gcbench.runner.command.options import read_config, read_options
from gcbench.runner.command.search import (
    count_objectives,
    objectives,
)
from gcbench.runner.command.subcommands import SUBCOMMANDS
from gcbench.runner.config.choices import store_rows
from gcbench.runner.config.compose import compose_overrides, open_nodes
from gcbench.runner.config.errors import RunDiverged, RunFailed, outcome
from gcbench.runner.config.hydra_versions import VERSION_BASE, trusting
from gcbench.runner.config.naming import notices_of
from gcbench.runner.config.resolve import resolve, resolve_benchmark
from gcbench.runner.config.typed import readable
from gcbench.runner.launch import slurm
from gcbench.runner.terminal import fold

log = logging.getLogger("gcbench")


@hydra.main(config_path=str(conf_directory()), config_name="config", **VERSION_BASE)
def run(composed: DictConfig) -> Any:
    """Start one run: check everything here, then start the workers.

    A sweeper that searches gets its objectives.
    """
    return _defer_errors(_run, composed)


@hydra.main(config_path=str(conf_directory()), config_name="bench", **VERSION_BASE)
def benchmark(composed: DictConfig) -> None:
    """Start one benchmark."""
    _defer_errors(_benchmark, composed)


def _defer_errors(start: Callable[[DictConfig], Any], composed: DictConfig) -> Any:
    try:
        return start(composed)
    except (ConfigError, RunFailed, OSError) as error:
        _remove_refused(HydraConfig.get().runtime.output_dir, composed.outputs)
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            raise
        outcome.deferred.append(error)


def _remove_refused(directory: str, outputs: str) -> None:
    """Remove the directory of a refused run if it holds nothing but Hydra's own files."""
    path = Path(directory)
    if path.is_dir() and {inner.name for inner in path.iterdir()} <= {".hydra"}:
        shutil.rmtree(path / ".hydra", ignore_errors=True)
        with suppress(OSError):  # another run has begun there
            while Path(outputs).absolute() in (path, *path.parents) or str(path) == directory:
                path.rmdir()
                path = path.parent


def _run(composed: DictConfig) -> float | list[float] | None:
    config = resolve(_with_hydra(composed))
    hydra_config = HydraConfig.get()
    in_sweep = hydra_config.mode is RunMode.MULTIRUN
    for notice in notices_of(config):
        log.warning(notice)
    # This imports torch, which is slow: the mistakes above are reported before it.
    from gcbench.runner.console import spinner

    with spinner("importing PyTorch"):
        from gcbench.runner.launch.start import start

    wanted = count_objectives(config, hydra_config)
    if wanted and slurm.is_of_torchrun(os.environ) and int(os.environ["WORLD_SIZE"]) > 1:
        raise ConfigError(
            "hydra/sweeper: every rank of torchrun would search by itself; type gcbench without "
            "torchrun, with trainer.launcher=local"
        )
    try:
        result = start(config, hydra_config.runtime.output_dir, in_sweep)
    except RunDiverged as error:
        if not wanted:
            raise
        log.warning("%s", error)
        result = None
    if not wanted:
        return None
    values = objectives(result)[:wanted]
    return values[0] if wanted == 1 else values


def _benchmark(composed: DictConfig) -> None:
    config = resolve_benchmark(_with_hydra(composed))
    from gcbench.runner.bench.start import bench

    bench(config, HydraConfig.get().runtime.output_dir)


def _with_hydra(composed: DictConfig) -> DictConfig:
    """Return the configuration with Hydra's own node, which records overrides and choices."""
    with open_dict(composed):
        composed.hydra = HydraConfig.get()
    return composed


def bench(arguments: Sequence[str]) -> None:
    start_hydra(benchmark, "bench", arguments)


def start_hydra(command: Callable[[], None], config: str, arguments: Sequence[str]) -> None:
    """Start a Hydra command.

    Under torchrun and srun every rank calls this, but only on the first does Hydra write files.
    """
    if {"-h", "--help"} & set(arguments):
        _print_help(config, [typed for typed in arguments if not typed.startswith("-")])
    elif "--version" in arguments:
        print(f"gcbench {version('gcbench')}")
    else:
        arguments = read_config(arguments)
        options = read_options(arguments, config == "bench")
        flags = [argument for argument in arguments if argument not in options.overrides]
        options.overrides = readable(options.overrides, options.config_dir, config == "bench")
        if config == "config" and options.cfg == "job" and not options.package:
            _print_config(options.overrides, options.config_dir)
            return
        store_rows(options.overrides, bool(options.config_dir or options.shell_completion))
        quiet = [] if _is_first_rank() else ["hydra.output_subdir=null"]
        # Hydra would refuse keys on both sides of an option.
        sys.argv[1:] = [*open_nodes(options.overrides), *quiet, *flags]
        with trusting(["gcbench.*", "hydra.*"]):  # to be callbacks of Hydra
            command()


def _print_help(config: str, topics: Sequence[str]) -> None:
    """Print a screen of help, all of it, or what there is on groups, keys and subcommands.

    Hydra would take two seconds to list all files of all groups.
    """
    text = help_of(config)
    if not topics and config == "config":
        text = short_help(text)
    elif topics and "all" not in topics:
        for topic in filter(SUBCOMMANDS.__contains__, topics):
            return SUBCOMMANDS[topic].start(["--help"])
        text = "\n".join(help_on(text, topic.partition("=")[0].lstrip("+~")) for topic in topics)
    print(fold(text))


def _print_config(overrides: Sequence[str], config_dir: str | None) -> None:
    """Print what a run is made of, with its budget applied, which Hydra would not do."""
    composed = compose_overrides(overrides, config_dir)
    config = resolve(composed).as_dict()
    shown = {str(key): config[str(key)] for key in composed if key not in ("budget", "hydra")}
    print(OmegaConf.to_yaml(OmegaConf.create(shown)), end="")


def _is_first_rank() -> bool:
    """Return whether this process is the first of a run, or its only one.

    RANK counts only if torchrun's other variables are set, too.
    """
    rank = "RANK" if slurm.is_of_torchrun(os.environ) else "SLURM_PROCID"
    return os.environ.get(rank, "0") == "0"
