"""The command `gcbench` and its subcommands."""

from __future__ import annotations

import logging
import os
import re
import shlex
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
from gcbench.core.errors import ConfigError, as_known, folded, near, nearest
from gcbench.core.reasons import safe_text
from gcbench.runner.commands import RENAMED, SUBCOMMANDS
from gcbench.runner.config.checks import refuse_empty_sweep, refuse_twice
from gcbench.runner.config.choices import store_rows
from gcbench.runner.config.compose import compose_overrides, help_of, open_nodes, register
from gcbench.runner.config.errors import COMPOSITION_ERRORS, RunDiverged, RunFailed
from gcbench.runner.config.help import fold, help_on, short_help
from gcbench.runner.config.hydra_versions import VERSION_BASE, register_resolver, trusting
from gcbench.runner.config.keys import SYNONYMS, Keys
from gcbench.runner.config.naming import notices_of
from gcbench.runner.config.resolve import resolve, resolve_benchmark
from gcbench.runner.config.sentences import bare_word, sentence_of
from gcbench.runner.config.typed import readable
from gcbench.runner.console import outlive_terminal, spinner
from gcbench.runner.launch import slurm
from gcbench.runner.search import (
    count_objectives,
    explain_sweeper_error,
    is_of_sweeper,
    objectives,
)
from gcbench.runner.sweep_progress import listed_errors, made_folders

_log = logging.getLogger("gcbench")
# Errors of a single run, raised once Hydra has returned: it would print its own line first.
_deferred_errors: list[Exception] = []


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
        _deferred_errors.append(error)


def _remove_refused(directory: str, outputs: str) -> None:
    """Remove the directory of a refused run if it holds nothing but Hydra's own files."""
    path = Path(directory)
    if path.is_dir() and {inner.name for inner in path.iterdir()} <= {".hydra"}:
        shutil.rmtree(path / ".hydra", ignore_errors=True)
        with suppress(OSError):  # another run has begun there
            while Path(outputs).absolute() in (path, *path.parents) or str(path) == directory:
                path.rmdir()
                path = path.parent


def _remove_made_folders() -> None:
    """Remove the folders that a refused command has made, where they hold no run."""
    for top in made_folders:
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                if os.listdir(folder) == ["multirun.yaml"]:  # Hydra's, of a sweep
                    Path(folder, "multirun.yaml").unlink()
                os.rmdir(folder)


def _run(composed: DictConfig) -> float | list[float] | None:
    config = resolve(_with_hydra(composed))
    hydra_config = HydraConfig.get()
    in_sweep = hydra_config.mode is RunMode.MULTIRUN
    for notice in notices_of(config):
        _log.warning(notice)
    # This imports torch, which is slow: the mistakes above are reported before it.
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
        _log.warning("%s", error)
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


# What others call a subcommand that starts a run, or a sweep.
RUNS = ("run", "train", "start", "launch")
SWEEPS = ("sweep", "multirun", "grid")


def main() -> None:
    """Run `gcbench`: the first argument names a subcommand; anything else is a run."""
    outlive_terminal()
    first, *rest = sys.argv[1:] or [""]
    if first not in SUBCOMMANDS:
        _command("gcbench", _run_or_refuse, sys.argv[1:])
    else:
        name, chosen = f"gcbench {first}", SUBCOMMANDS[first]
        while rest and rest[0] in chosen.parts:
            name, chosen, rest = f"{name} {rest[0]}", chosen.parts[rest[0]], rest[1:]
        _command(name, chosen.start, rest)


def _run_or_refuse(arguments: Sequence[str]) -> None:
    if "-sc" in arguments and _complete_subcommand(os.environ.get("COMP_LINE", "")):
        return
    if arguments and arguments[0][:1] not in ("-", "~", "") and "=" not in arguments[0]:
        _refuse_subcommand(*arguments)
    _start_hydra(run, "config", arguments)


def _refuse_subcommand(word: str, *rest: str) -> NoReturn:
    """Say what to type in place of a first word that is no subcommand."""
    if word in RENAMED:
        raise ConfigError(f"{word}: type {shlex.join(['gcbench', *RENAMED[word].split(), *rest])}")
    if word in (*RUNS, *SWEEPS):
        what, option = ("a sweep", ["-m"]) if word in SWEEPS else ("a run", [])
        command = shlex.join(["gcbench", *option, *rest])
        raise ConfigError(f"{word}: {what} needs no subcommand; type {command}")
    if rest and rest[0].startswith("="):  # a key, its = and its value
        readable([word, *rest])
    following = rest[0] if rest and re.fullmatch("[^-=][^=]*", rest[0]) else ""
    if not nearest(word, SUBCOMMANDS, like=0.8) and (
        sentence := bare_word(word, following, benchmark=False, overrides=rest)
    ):
        raise ConfigError(sentence)
    known = near(word, [*SUBCOMMANDS, "--help"]) or ", ".join(SUBCOMMANDS)
    raise ConfigError(
        f"{word}: there is no such subcommand; type gcbench {known}, or key=value for a run"
    )


def _complete_subcommand(line: str) -> bool:
    """Print the subcommands that begin like the line in a shell; return whether it has one.

    Hydra completes the keys and choices of runs only.
    """
    first, *more = line.split()[1:] or [""]
    ended = bool(first) and line[-1:].isspace()  # the cursor is at the next word
    if line and not more and not ended:  # there is no line while the completion is installed
        for name in SUBCOMMANDS:
            if name.startswith(first):
                print(name)
    return first in SUBCOMMANDS


def bench(arguments: Sequence[str]) -> None:
    _start_hydra(benchmark, "bench", arguments)


def _start_hydra(command: Callable[[], None], config: str, arguments: Sequence[str]) -> None:
    """Start a Hydra command.

    Under torchrun and srun every rank calls this, but only on the first does Hydra write files.
    """
    if {"-h", "--help"} & set(arguments):
        _print_help(config, [typed for typed in arguments if not typed.startswith("-")])
    elif "--version" in arguments:
        print(f"gcbench {version('gcbench')}")
    else:
        options = _read_options(arguments, config == "bench")
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


def _read_options(arguments: Sequence[str], benchmark: bool) -> Namespace:
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
        own = Path(value or "mine.yaml").stem
        return (
            f"{flag}: keys of a run are read from a file FOLDER/experiment/{own}.yaml; type "
            f"--config-dir FOLDER +experiment={own}"
        )
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


def _list_subcommands() -> str:
    """Return the lines of --help that list the subcommands, indented to match."""
    return "\n  ".join(f"{name:12}{one.about}" for name, one in SUBCOMMANDS.items())


def _command(
    name: str,
    start: Callable[[Sequence[str]], None],
    arguments: Sequence[str],
) -> None:
    full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    # Hydra then raises errors instead of printing them, and we print one sentence.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Processes that this one starts would first look for modules in the working directory.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    _log_to_stderr(name)
    register()
    register_resolver("gcbench.subcommands", _list_subcommands)
    try:
        start(arguments)
        sys.stdout.flush()
        if _deferred_errors:
            raise _deferred_errors.pop()
        if listed_errors:
            first, *_ = listed_errors
            listed_errors.clear()
            if full_error:
                raise first
            _end_refused()
    except BrokenPipeError:  # the reader has closed the pipe, as in `gcbench runs | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConfigError, RunFailed, OSError, *COMPOSITION_ERRORS) as error:
        if full_error:
            raise
        _end_refused(f"{name}: {safe_text(sentence_of(error, name, arguments))}")
    except Exception as error:
        if full_error or not is_of_sweeper(error):
            raise
        why = safe_text(explain_sweeper_error(error))
        _end_refused(f"{name}: the sweeper cannot search this: {why}")


def _end_refused(sentence: str = "") -> NoReturn:
    _remove_made_folders()
    if sentence:
        print(sentence, file=sys.stderr)
    sys.exit(1)


def _log_to_stderr(name: str) -> None:
    """Send gcbench's notices to stderr in its own format, whatever logging Hydra sets up."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    logger = logging.getLogger("gcbench")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logging.raiseExceptions = False  # nobody reads stderr any more, as after `2>&1 | head`
    # Without a handler, Hydra's logger would print errors first, in its own words.
    logging.getLogger("hydra").addHandler(logging.NullHandler())


def _is_first_rank() -> bool:
    """Return whether this process is the first of a run, or its only one.

    RANK counts only if torchrun's other variables are set, too.
    """
    rank = "RANK" if slurm.is_of_torchrun(os.environ) else "SLURM_PROCID"
    return os.environ.get(rank, "0") == "0"
