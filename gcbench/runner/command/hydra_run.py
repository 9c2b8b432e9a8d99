"""Runs and benchmarks as Hydra starts them; options that Hydra would let pass are refused."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError, as_known, folded, nearest
from gcbench.runner.command.help import help_of, help_on, short_help
from gcbench.runner.command.search import (
    count_objectives,
    objectives,
)
from gcbench.runner.command.subcommands import SUBCOMMANDS
from gcbench.runner.config.checks import refuse_empty_sweep, refuse_twice
from gcbench.runner.config.choices import store_rows
from gcbench.runner.config.compose import compose_overrides, open_nodes
from gcbench.runner.config.errors import RunDiverged, RunFailed, outcome
from gcbench.runner.config.hydra_versions import VERSION_BASE, trusting
from gcbench.runner.config.keys import SYNONYMS, Keys
from gcbench.runner.config.naming import notices_of
from gcbench.runner.config.resolve import resolve, resolve_benchmark
from gcbench.runner.config.typed import add_run_file, readable
from gcbench.runner.launch import slurm
from gcbench.runner.terminal import fold

log = logging.getLogger("gcbench")

# Hydra's options, of which it has no public list, by what follows them.
FLAGS = {
    "--help": "-h",
    "--hydra-help": None,
    "--version": None,
    "--resolve": None,
    "--run": "-r",
    "--multirun": "-m",
    "--shell-completion": "-sc",
}
WITH_VALUE = {
    "--package": "-p",
    "--config-path": "-cp",
    "--config-name": "-cn",
    "--config-dir": "-cd",
    "--experimental-rerun": None,
}
SHOWN = ("job", "hydra", "all")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def read_config(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with what the file of --config has in its place.

    Logs what of the file is left out, as it belongs to a choice that was typed anew.
    """
    names = [argument.partition("=")[0] for argument in arguments]
    if "--config" not in names:
        return list(arguments)
    at = names.index("--config")
    _, equals, path = arguments[at].partition("=")
    rest = arguments[at + 1 :]
    if not equals:
        path, rest = (rest[0], rest[1:]) if rest else ("", rest)
    if not path or path.startswith("-"):
        raise ConfigError(
            "--config: type the file of a run after it, as in --config outputs/NAME/config.yaml"
        )
    if "--config" in names[at + 1 :]:
        raise ConfigError("--config: a run has one file; type --config only once")
    others = [*arguments[:at], *rest]
    is_override = [not other.startswith("-") and "=" in other for other in others]
    typed = [other for other, is_one in zip(others, is_override, strict=True) if is_one]
    both, lost = add_run_file(path, typed)
    if lost:
        log.info("left out of %s, as its choice is another: %s", path, " ".join(lost))
    of_file = both[: len(both) - len(typed)]
    return [*of_file, *others]


def read_options(arguments: Sequence[str], benchmark: bool) -> Namespace:
    """Return Hydra's options; raise ConfigError for one it lacks, and for what Hydra lets pass.

    That is a key typed twice, and a sweep without rows.
    """
    parser = _parser()

    def refuse(message: str) -> NoReturn:
        found = re.match(r"argument (--[\w-]+)", message)
        choices = found and parser._option_string_actions[found[1]].choices
        raise ConfigError(
            f"{found[1]}: type {' or '.join(f'{found[1]} {choice}' for choice in choices)}"
            if found and choices
            else f"{message}; type gcbench --help"
        )

    parser.error = refuse  # type: ignore[method-assign]
    # argparse would read -clip_norm=1 as -c with a value.
    with_value = [one for one in arguments if re.match("-[^-]*=", one)]
    named = parser._option_string_actions
    keys = [one for one in with_value if one.partition("=")[0] not in named]
    options, unknown = parser.parse_known_intermixed_args([] if keys else arguments)
    for flag in keys or (argument for argument in unknown if argument.startswith("-")):
        known = [one for one in named if one.startswith("--")]
        raise ConfigError(_option_sentence(flag, known, arguments, benchmark))
    _refuse_two_commands(options)
    refuse_twice(options.overrides, sweep=True)
    refuse_empty_sweep(options.overrides, options.config_dir)
    return options


def _parser() -> ArgumentParser:
    """Return a parser of Hydra's options and overrides."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for name, short in FLAGS.items():
        parser.add_argument(*filter(None, (name, short)), action="store_true")
    for name, short in WITH_VALUE.items():
        parser.add_argument(*filter(None, (name, short)))
    parser.add_argument("--cfg", "-c", choices=SHOWN)
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=INFO)
    return parser


def _option_sentence(
    flag: str, known: Sequence[str], arguments: Sequence[str], benchmark: bool
) -> str:
    """Return the sentence for an option that there is not, which is often a key in dashes."""
    name, _, value = flag.lstrip("-").replace("-", "_").partition("=")
    following = [*arguments, ""][arguments.index(flag) + 1]
    if not value and following and following[0] != "-" and "=" not in following:
        value, flag = following, f"{flag} {following}"
    if name.startswith("config"):
        return f"{flag}: a run is read from a file by --config; type --config {value or 'FILE'}"
    keys = Keys.of_command(benchmark, arguments)
    if as_known(name, keys) in keys:
        return f"{flag}: keys have no dashes; type {as_known(name, keys)}={value or 'VALUE'}"
    if likely := nearest(flag, known, most=1, like=0.75):
        return f"{flag}: there is no such option; type {likely[0]}"
    meant = keys.meant(name, value) if name[1:] or folded(name) in SYNONYMS else ""
    return f"{flag}: there is no such option; {meant or 'type --help'}"


def _refuse_two_commands(options: Namespace) -> None:
    names = ("run", "cfg", "info", "shell_completion", "multirun")
    typed = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if typed[1:] == ["--multirun"]:
        raise ConfigError(f"{typed[0]} is for one run; type it without -m, with one value per key")
    if len(typed) > 1:
        raise ConfigError(f"{typed[0]} and {typed[1]} are two commands; type only one of them")
    if options.resolve and not options.cfg:
        raise ConfigError("--resolve: this belongs to --cfg; type --cfg job --resolve")


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
