"""Hydra's options, as they are typed; what Hydra would let pass is refused."""

from __future__ import annotations

import logging
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from gcbench.core.errors import ConfigError, as_known, folded, nearest
from gcbench.runner.config.checks import refuse_empty_sweep, refuse_twice
from gcbench.runner.config.keys import SYNONYMS, Keys
from gcbench.runner.config.run_file import add_run_file

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
