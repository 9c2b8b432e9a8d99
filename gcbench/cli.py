"""The commands."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from gcbench.config import (
    ConfigError,
    RunFailed,
    budget_notice,
    conf_directory,
    first_words,
    learning_rate_notice,
    register,
    resolve,
    resolve_benchmark,
)

INTERRUPTED = 130
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")

_log = logging.getLogger("gcbench")
_told_later: list[Exception] = []  # of a single run: handed to Hydra, it would say a line of its own before ours


@hydra.main(config_path=str(conf_directory()), config_name="config", version_base="1.3")
def run(composed: DictConfig) -> None:
    """One run: check everything here, then start the workers."""
    try:
        _run(composed)
    except (ConfigError, RunFailed, OSError) as error:
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            raise
        _told_later.append(error)


def _run(composed: DictConfig) -> None:
    config = resolve(_with_hydra(composed))
    hydra_config = HydraConfig.get()
    in_sweep = hydra_config.mode is RunMode.MULTIRUN
    if not in_sweep and _is_first_rank():
        _log.info(first_words(config, hydra_config.runtime.output_dir))
    for notice in filter(None, (budget_notice(config), learning_rate_notice(config))):
        _log.warning(notice)
    from gcbench.launch.start import start  # imports torch, which a mistake above should not wait for

    start(config, hydra_config.runtime.output_dir, in_sweep)


@hydra.main(config_path=str(conf_directory()), config_name="bench", version_base="1.3")
def benchmark(composed: DictConfig) -> None:
    """One benchmark."""
    config = resolve_benchmark(_with_hydra(composed))
    from gcbench.bench.start import bench

    bench(config, HydraConfig.get().runtime.output_dir)


def _with_hydra(composed: DictConfig) -> DictConfig:
    """With Hydra's own node, which says what was typed and chosen."""
    with open_dict(composed):
        composed.hydra = HydraConfig.get()
    return composed


def main() -> None:
    """`gcbench`."""
    _quiet_ranks()
    _command("gcbench", run)


def main_bench() -> None:
    """`gcbench-bench`."""
    _quiet_ranks()
    _command("gcbench-bench", benchmark)


def main_check() -> None:
    """`gcbench-check`."""
    _command("gcbench-check", _check)


def main_methods() -> None:
    """`gcbench-methods`."""
    _command("gcbench-methods", _methods)


def main_report() -> None:
    """`gcbench-report`."""
    _command("gcbench-report", _report)


def main_study() -> None:
    """`gcbench-study`."""
    _command("gcbench-study", _study)


def main_model() -> None:
    """`gcbench-model`."""
    _command("gcbench-model", _model)


def _check() -> None:
    parser = argparse.ArgumentParser(
        prog="gcbench-check",
        description="Runs the tests that every method of gcbench passes on a method of your own.",
        epilog="gcbench-check my_package.MyMethod rank=2 | gcbench-check --config-dir my_conf compressor=mine rank=2",
    )
    parser.add_argument("--config-dir", help="a folder with your compressor/NAME.yaml")
    parser.add_argument("words", nargs="+", help="a class by its dotted name, or compressor=NAME, and settings as key=value")
    typed = parser.parse_intermixed_args()
    from gcbench.check.report import check_method  # imports torch
    from gcbench.check.subject import subject_of

    if not check_method(subject_of(typed.words, typed.config_dir)):
        sys.exit(1)


def _methods() -> None:
    parser = argparse.ArgumentParser(
        prog="gcbench-methods", description="Lists all methods: what they are, what they send, what they promise."
    )
    parser.add_argument("--config-dir", help="a folder with your compressor/NAME.yaml, to be listed too")
    typed = parser.parse_args()
    from gcbench.check.methods import list_methods  # imports torch

    list_methods(typed.config_dir)


def _report() -> None:
    from gcbench.report.command import report

    report()


def _model() -> None:
    from gcbench.predict.command import model

    model()


def _study() -> None:
    parser = argparse.ArgumentParser(
        prog="gcbench-study",
        description="Measures what the papers' figures and tables need besides training runs.",
        epilog="gcbench-study list | gcbench-study quantiser_bounds seeds=3 outputs=outputs",
    )
    parser.add_argument("words", nargs="+", help="list, or a study's name, and settings as key=value")
    typed = parser.parse_args()
    from gcbench.studies.command import study  # imports torch

    study(typed.words)


def _command(name: str, command: Callable[[], None]) -> None:
    full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors through, and we say them in one sentence
    if command is not _report:  # which reads what others made, and in whose folder it may be typed
        sys.path.append(os.getcwd())  # the user's own packages, as with `python -m`
    _speak()
    register()
    try:
        command()
        sys.stdout.flush()
        if _told_later:
            raise _told_later.pop()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # whoever reads, as in `gcbench-report list | head -1`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConfigError, RunFailed, HydraException, OmegaConfBaseException, OSError) as error:
        if full_error:
            raise
        print(f"{name}: {_sentence(error)}", file=sys.stderr)
        sys.exit(1)


def _speak() -> None:
    """Our notices go to stderr in our own words, whatever Hydra sets up for logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("gcbench: %(message)s"))
    logger = logging.getLogger("gcbench")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logging.getLogger("hydra").addHandler(logging.NullHandler())  # which would say mistakes first in its own


def _quiet_ranks() -> None:
    """Under torchrun and srun every rank comes here; only the first lets Hydra write its files."""
    if not _is_first_rank():
        sys.argv += ["hydra.output_subdir=null"]


def _is_first_rank() -> bool:
    """Whether this process is the first of a run, or its only one; a RANK without the rest of torchrun's names is none."""
    rank = "RANK" if all(name in os.environ for name in TORCHRUN) else "SLURM_PROCID"
    return os.environ.get(rank, "0") == "0"


def _mistake_inside(error: BaseException | None) -> ConfigError | None:
    """Of a resolver of ours, around which OmegaConf has put errors of its own."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__cause__ or error.__context__
    return error


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; type outputs=DIR (or data.root=DIR) with a folder that can be used"
    if mistake := _mistake_inside(error):
        return str(mistake)
    cause = "" if isinstance(error, ConfigError) else str(error.__cause__ or "")
    lines = [*str(error).splitlines(), *(cause.splitlines() if cause not in str(error) else [])]
    said_by_omegaconf = ("object_type=", "full_key: hydra.")
    text = "\n".join(line for line in lines if line and not any(word in line for word in said_by_omegaconf))
    text = text.removeprefix("ConfigError raised while resolving interpolation: ")  # of the run's name
    text = text.partition("\nConfig search path")[0]  # a choice that is not there: what there is stands before it
    if unknown := re.match(r"Could not override '(.+?)'", text):
        return (
            f"{unknown[1]}: no such key with these choices (a compressor's knobs exist only where they mean something); "
            "type gcbench --help or gcbench --cfg job to see the keys"
        )
    return text
