"""The names of the directories of runs and benchmarks, and notices before a run starts."""

from __future__ import annotations

import os
import re
from glob import escape
from pathlib import Path

from omegaconf import DictConfig, open_dict, read_write

from gcbench.core.conf import Config
from gcbench.core.fields import format_value
from gcbench.runner.config.budget import PAPER
from gcbench.runner.config.checks import refuse_name
from gcbench.runner.config.choices import choices_of, typed_knobs
from gcbench.runner.config.composed import Composed, fill
from gcbench.runner.config.resolve import settle
from gcbench.runner.differences import CHOICE_GROUPS
from gcbench.runner.identity import digest, relevant_config
from gcbench.runner.settings.config import RunConfig

KNOB = "+"  # precedes each knob in the name of a directory; no choice contains it
LONGEST = 60  # maximum number of bytes of all knobs in such a name


def run_name(composed: DictConfig) -> str:
    """Return the name of a run's directory: the run's title, its knobs, seed and hash.

    It is readable, and differs for runs that differ in anything that matters. If the same run
    already has a directory, for which other knobs were typed (for example some at their defaults),
    the name of that one is returned.
    """
    given = Composed.of(composed)
    config = settle(given)
    refuse_name(config["name"])
    choices = config["choices"]
    parts = (choices[group].rsplit(".", 1)[-1] for group in CHOICE_GROUPS)
    title = config["name"] or config["experiment"] or "-".join(parts)
    budget = "" if choices["budget"] == PAPER else f"-{choices['budget']}"
    ending = f"-s{config['seed']}-{digest(relevant_config(config))}"
    name = f"{title}{budget}{_knobs_in_name(typed_knobs(given, config))}{ending}"
    outputs = Path(composed.outputs)
    if (outputs / name).is_dir():
        return name
    title, _, begin = f"{title}{budget}".rpartition("/")
    alike = (outputs / title).glob(f"{escape(begin)}*{ending}")
    known = [path for path in alike if path.name[len(begin) : -len(ending)][:1] in ("", KNOB)]
    return str(min(known).relative_to(outputs)) if known else name


def _knobs_in_name(knobs: Config) -> str:
    """Return knobs in the form `+bits4+lr0.1+norm_l2`, as many as fit into `LONGEST`."""
    text = ""
    for key, value in knobs.items():
        short = re.sub(r"[^\w.-]+", "_", format_value(value)).strip("_")
        between = "_" if short[:1].isalpha() else ""
        knob = f"{KNOB}{key.rpartition('.')[2]}{between}{short}"
        text += knob if len((text + knob).encode()) <= LONGEST else ""
    return text


def run_directory(composed: DictConfig) -> str:
    """Return the directory for a run's files; it may be relative to the working directory."""
    if composed.directory:
        return str(composed.directory)
    name = run_name(composed)  # which refuses an `outputs` that is no folder
    return str(Path(composed.outputs) / name)


def sweep_subdirectory(composed: DictConfig) -> str:
    """Return the directory for the files of a sweep's row: `directory`, or a name in `outputs`."""
    return os.path.abspath(composed.directory) if composed.directory else run_name(composed)


def row_directory(composed: DictConfig, number: int) -> str:
    """Return the directory that Hydra gives a sweep's row with this number.

    It is the one of `run_directory` unless hydra.sweep.dir or subdir was typed, or `directory`.
    """
    with read_write(composed.hydra.job), open_dict(composed.hydra.job):
        composed.hydra.job.num = number
    return os.path.join(composed.hydra.sweep.dir, composed.hydra.sweep.subdir)


def bench_name(composed: DictConfig) -> str:
    """Return the name of a benchmark's directory."""
    given = Composed.of(composed)
    config = fill(given.tree)
    refuse_name(config["name"])
    return f"{config['name'] or choices_of(given)['compressor']}-{digest(config)}"


def notices_of(config: RunConfig) -> list[str]:
    """Return the notices of what a user may not expect of a run."""
    return [*filter(None, (budget_notice(config), learning_rate_notice(config)))]


def learning_rate_notice(config: RunConfig) -> str | None:
    """Return a notice if the learning rate is far from the one that the method's paper used."""
    published = config.method.recommended.get("lr")
    lr = config.optimizer.lr
    if published is None or published / 10 <= lr <= published * 10:
        return None
    return (
        f"optimizer.lr={lr:g} is more than 10 x off the rate that "
        f"compressor={config.choices['compressor']} was published with; "
        f"type optimizer.lr={published:g} to use that one"
    )


def budget_notice(config: RunConfig) -> str | None:
    """Return a notice of what a budget has made of a run; None for the settings of the paper."""
    trainer, name = config.trainer, config.choices["budget"]
    if name == PAPER:
        return None
    length = (
        f"trainer.max_steps={trainer.max_steps}"
        if trainer.max_steps
        else f"trainer.epochs={trainer.epochs:g}"
    )
    return (
        f"budget={name}: model={config.choices['model']} trainer.workers={trainer.workers} "
        f"trainer.batch_size={trainer.batch_size} {length} optimizer.lr={config.optimizer.lr:g}"
    )
