"""What scripts/faults runs: configurations, sweeps, searches and loops, drawn from the schema."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

from disturbing import Job
from loops import HANDLES

from gcbench.core.compressor import MethodError
from gcbench.core.conf import choices_in
from gcbench.core.errors import ConfigError
from gcbench.core.fields import Settings, choices_of_kind, format_value, hints_of, kinds_of
from gcbench.core.method_keys import MethodSettings
from gcbench.runner.config.checks import refuse_twice
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.config.keys import keys_by_choice, method_keys
from gcbench.runner.launch.checks import check
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.settings.config import SCHEMAS

COMMON = (
    "model.widths=[16,16] trainer.max_steps=150 trainer.epochs=9 trainer.batch_size=16 "
    "trainer.threads=1 trainer.log_every=3 trainer.keep_weights=true trainer.timeout_seconds=60"
)
# What a choice needs beside it, or what makes it quick.
BESIDE = {
    "compressor=dion": "optimizer=dion",
    **dict.fromkeys(("compressor=demo", "compressor=dgc"), "optimizer.momentum=0"),
    "compressor=onebit_adam": "optimizer=frozen_adam optimizer.freeze_steps=8",
    "estimator=svrg": "optimizer.momentum=0 schedule=constant estimator.epoch_steps=7",
    "estimator=zero_one_adam": "optimizer=frozen_adam optimizer.freeze_steps=20 "
    "optimizer.updates_per_interval=2 estimator.double_steps=9 estimator.max_every=4",
    "estimator=local_steps": "estimator.every=4",
    "logger=wandb": "logger.mode=offline",
    "trainer.overlap=true": "trainer.bucket_mib=0.001",
    "trainer.overlap=auto": "trainer.bucket_mib=0.001",
}
WORKERS = (
    *3 * ["trainer.launcher=local trainer.workers=2"],
    "trainer.launcher=local trainer.workers=3",
    "trainer.launcher=local trainer.workers=2 trainer.max_restarts=1",
    "trainer.launcher=local trainer.workers=4 trainer.processes=2",
    "trainer.launcher=local trainer.workers=4 trainer.processes=2 exchange=hierarchical "
    "workers_per_node=2",
    "trainer.launcher=virtual trainer.workers=3",
)
# The choices of groups whose keys depend on them, where none is typed.
DEFAULTS = {"compressor": "qsgd", "estimator": "sgd", "optimizer": "sgd", "network": "none"}
# How often a group has another choice than the one by default, and a key another value.
CHOICES = {"estimator": 0.5, "optimizer": 0.15, "schedule": 0.15, "network": 0.2, "logger": 0.6}
KEYS = {
    "compressor": 0.35,
    "estimator": 0.4,
    "network": 0.5,
    "optimizer": 0.1,
    "schedule": 0.1,
    "trainer": 0.06,
}
FEW = 8  # values of a range, which are all drawn
ODDS = {  # of one key
    "exchange": 0.5,
    "code": 0.5,
    "adapt_every": 0.5,
    "trainer.overlap": 0.25,
    "trainer.double_buffering": 0.15,
}
BUILDS = 0.12  # how often codecs are compiled, which takes long
# Values for 150 steps of a small model, where the example of the schema is for a large one: those
# that every run has, and those that are drawn like any other.
ALWAYS = {
    "min_size": "0",
    "rank": "1 2",
    "k": "50",
    "bucket_size": "64",
    "chunk_size": "64",
    "chunk_side": "8",
    "coefficients": "4",
    "trainer.checkpoint_steps": "3 7 20 50",
    "trainer.error_every": "4 4 null",
    "trainer.drift_every": "20",
}
VALUES = {
    "warmup_steps": "40",
    "adapt_every": "10 25",
    "reset_steps": "20",
    "dense_steps": "5",
    "estimator.every": "3",
    "estimator.fragments": "2 3",
    "estimator.delay": "1 2",
    "schedule.warmup_epochs": "1",
    "network.bandwidth": "100mbit 1gbit",
    "network.latency": "50us 1ms",
    "trainer.eval_batch_size": "64",
    "trainer.accumulate": "2",
    "trainer.record_gradients": "[0,60]",
    "trainer.target": "50",
}
# What is not drawn: what others set, what takes minutes or a GPU, and what other machines need.
LEFT_OUT = {
    *(word.partition("=")[0] for line in (COMMON, *WORKERS) for word in line.split()),
    *"trainer.nodes trainer.device trainer.backend trainer.compile trainer.codec_backend".split(),
    *"trainer.checkpoint_minutes trainer.bucket_mib schedule.kind".split(),
    *"optimizer.kind optimizer.lr optimizer.groups optimizer.updates_per_interval".split(),
} - {"exchange", "workers_per_node"}


def draw_job(random: Random) -> Job:
    kind = random.choices(["run", "sweep", "tune", "loop"], [12, 3, 1, 4])[0]
    if kind == "loop":
        method = f"compressor={random.choice([*method_keys()])}"
        fitting = keep_fitting([method], [*_draw_knobs(random, [method], "compressor")])
        return Job(kind, (random.choice([*HANDLES]), *fitting))
    typed = draw_run(random)
    if kind == "sweep":
        return Job(kind, ("-m", *typed, "seed=1,2", "outputs=run"))
    if kind == "tune":
        return Job(
            kind, ("papers", "tune", *typed, "rates=1,2", "seeds=1", "tries=2", "outputs=run")
        )
    return Job(kind, (*typed, "directory=run"))


def draw_run(random: Random) -> list[str]:
    """Return what is typed for a run: choices, and then values of the keys that these have."""
    parts = [f"compressor={random.choice([*method_keys()])}", random.choice(WORKERS)]
    for group, odds in CHOICES.items():
        if random.random() < odds:
            offered = [choice for choice in choices_in(group) if choice not in LEFT_OUT]
            parts.append(f"{group}={random.choice(offered)}")
    backend = random.choice(["auto", "compiled"]) if random.random() < BUILDS else "eager"
    parts.append(f"trainer.codec_backend={backend}")
    typed = keep_fitting(COMMON.split(), [_with_beside(part) for part in parts])
    knobs = [one for group in KEYS for one in _draw_knobs(random, typed, group)]
    return keep_fitting(typed, [_with_beside(knob) for knob in knobs])


def _with_beside(part: str) -> str:
    return f"{part} {BESIDE[part]}" if part in BESIDE else part


def _draw_knobs(random: Random, typed: Sequence[str], group: str) -> Iterator[str]:
    """Yield key=value for some of the keys that the typed choice of a group has."""
    schema = SCHEMAS.get(group, MethodSettings)
    chosen = [word.partition("=")[2] for word in typed if word.startswith(f"{group}=")]
    choice = [*chosen, DEFAULTS.get(group, "")][0]
    for name in keys_by_choice(group)[choice] if group in DEFAULTS else schema.model_fields:
        key = name if group == "compressor" else f"{group}.{name}"
        if key in ALWAYS or (key not in LEFT_OUT and random.random() < ODDS.get(key, KEYS[group])):
            if values := _values_of(schema, name, key):
                yield f"{key}={random.choice(values)}"


@cache
def _values_of(schema: type[Settings], name: str, key: str) -> list[str]:
    """Return what may be typed for a key: its choices, a small range, or its examples."""
    if key in VALUES or key in ALWAYS:
        return (VALUES | ALWAYS)[key].split()
    values: list[str] = []
    for kind in kinds_of(hints_of(schema)[name]) if name in schema.model_fields else ():
        values += choices_of_kind(kind)
        if {"minimum", "maximum"} <= kind.keys() and kind["maximum"] <= FEW:
            values += map(str, range(kind["minimum"], kind["maximum"] + 1))
        else:
            values += [format_value(value) for value in kind.get("examples", ())]
    has_default = values and schema.total
    default = str(schema.model_fields[name].default).lower() if has_default else ""
    return [value for value in values if value != default]


def keep_fitting(typed: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return what is typed with the parts that are not refused beside those before them."""
    longer = [*typed, *(word for part in parts for word in part.split())]
    if not parts or fits(longer):
        return longer
    half = len(parts) // 2
    return keep_fitting(keep_fitting(typed, parts[:half]), parts[half:]) if half else [*typed]


def fits(typed: Sequence[str]) -> bool:
    """Return whether a run composes, and would start."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refuse_twice(typed)
            config, directory = resolve_overrides(typed)
            plan = make_plan(config, Machine.detect())
            check(config, plan, make_data(config), Path(directory))
    except (ConfigError, MethodError, ValueError):
        return False
    return True
