"""The commands."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from gcbench.config import (
    ConfigError,
    RunFailed,
    conf_directory,
    learning_rate_notice,
    register,
    resolve,
    resolve_benchmark,
)

INTERRUPTED = 130


@hydra.main(config_path=str(conf_directory()), config_name="config", version_base="1.3")
def run(composed: DictConfig) -> None:
    """One run: check everything here, then start the workers."""
    hydra_config = HydraConfig.get()
    with open_dict(composed):
        composed.hydra = hydra_config
    config = resolve(composed)
    if notice := learning_rate_notice(config):
        logging.getLogger("gcbench").warning(notice)
    from gcbench.launch.start import start  # imports torch, which a mistake above should not wait for

    start(config, hydra_config.runtime.output_dir)


@hydra.main(config_path=str(conf_directory()), config_name="bench", version_base="1.3")
def benchmark(composed: DictConfig) -> None:
    """One benchmark."""
    hydra_config = HydraConfig.get()
    with open_dict(composed):
        composed.hydra = hydra_config
    config = resolve_benchmark(composed)
    from gcbench.bench.start import bench

    bench(config, hydra_config.runtime.output_dir)


def main() -> None:
    """`gcbench`."""
    _command("gcbench", run)


def main_bench() -> None:
    """`gcbench-bench`."""
    _command("gcbench-bench", benchmark)


def _command(name: str, command: Callable[[], None]) -> None:
    full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors through, and we say them in one sentence
    sys.path.append(os.getcwd())  # the user's own packages, as with `python -m`
    _speak()
    register()
    _quiet_ranks()
    try:
        command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
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


def _quiet_ranks() -> None:
    """Under torchrun every rank comes here; only the first lets Hydra write its files."""
    if os.environ.get("RANK", "0") != "0":
        sys.argv += ["hydra.output_subdir=null"]


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; type outputs=DIR (or data.root=DIR) with a folder that can be used"
    cause = str(error.__cause__ or "")
    lines = [*str(error).splitlines(), *(cause.splitlines() if cause not in str(error) else [])]
    text = "\n".join(line for line in lines if line and "object_type=" not in line)
    if unknown := re.match(r"Could not override '(.+?)'", text):
        return (
            f"{unknown[1]}: no such key with these choices (a compressor's knobs exist only where they mean something); "
            "type gcbench --help or gcbench --cfg job to see the keys"
        )
    return text
