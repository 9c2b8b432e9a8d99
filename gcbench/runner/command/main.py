"""The command `gcbench` and its subcommands."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from gcbench.core.errors import ConfigError, near, nearest, safe_text
from gcbench.runner.command.hydra_run import run, start_hydra
from gcbench.runner.command.search import (
    explain_sweeper_error,
    is_of_sweeper,
)
from gcbench.runner.command.subcommands import RENAMED, SUBCOMMANDS
from gcbench.runner.config.compose import register
from gcbench.runner.config.errors import COMPOSITION_ERRORS, RunFailed, outcome
from gcbench.runner.config.sentences import bare_word, sentence_of
from gcbench.runner.config.typed import readable
from gcbench.runner.terminal import outlive_terminal

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
    start_hydra(run, "config", arguments)


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
    words = line.split()[1:]
    if not line or line[-1:].isspace():  # the cursor is at the next word
        words.append("")
    *before, last = words
    known = SUBCOMMANDS if not before else {}
    if before[:1] and not before[1:] and before[0] in SUBCOMMANDS:
        known = dict(SUBCOMMANDS[before[0]].parts)
    for name in known if line else ():  # there is no line while the completion is installed
        if name.startswith(last):
            print(name)
    return words[0] in SUBCOMMANDS


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
    try:
        start(arguments)
        sys.stdout.flush()
        told = bool(outcome.listed) and not outcome.deferred
        if error := outcome.error():
            if full_error or not told:
                raise error
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
    outcome.remove_made_folders()
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
