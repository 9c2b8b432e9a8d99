"""Checks of what was typed and composed; a mistake is refused in one sentence."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gcbench.core.conf import Config, choices_in, conf_directory
from gcbench.core.errors import ConfigError, IdleKeyError, nearest
from gcbench.core.fields import (
    NonNegative,
    Settings,
    format_value,
    hints_of,
    refusal,
)
from gcbench.core.keys import refuse_idle_keys
from gcbench.runner.config.choices import row_names, table_directory, tables_in
from gcbench.runner.identity import Flat
from gcbench.runner.settings.config import NEEDS, SCHEMAS
from gcbench.runner.settings.optimizer import OptimizerSettings
from gcbench.runner.settings.run import DatasetSettings
from gcbench.runner.settings.trainer import OTHER_NAMES, TrainerSettings

# Groups whose files have only the keys that their class takes.
WITH_KEYS_BY_CHOICE = ("optimizer", "estimator", "network")

# Keys that mean the same for any `_target_`; the class itself checks all others.
OF_ANY_TARGET = ("lr", "groups", "interval")


def check_values(config: Config, *keys: type[Settings]) -> None:
    """Refuse values outside their ranges, of top-level `keys` and of nodes with a model."""
    for schema in keys:
        check_node(config, schema, "")
    for group, schema in SCHEMAS.items():
        node = config.get(group, {})
        for name in node.keys() - schema.model_fields.keys() if "_target_" not in node else ():
            known = list(schema.model_fields)
            near = nearest(name, known, most=1)
            advice = f"did you mean {group}.{near[0]}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(
                f"{group}.{name}: no such key, in a file of the configuration; {advice}"
            )
        check_node(node, schema, f"{group}.")
    check_node(config.get("dataset", {}), DatasetSettings, "dataset.")
    _check_groups(config.get("optimizer", {}))


def values_fit(tree: DictConfig, typed: Collection[str]) -> bool:
    """Return whether the typed values of all nodes with a model are in their ranges."""
    for group, schema in SCHEMAS.items():
        node = OmegaConf.to_container(tree[group], resolve=True)
        assert isinstance(node, dict)
        named = {str(key): value for key, value in node.items()}
        asked = {k: v for k, v in named.items() if k == "_target_" or f"{group}.{k}" in typed}
        try:
            check_node(asked, schema, f"{group}.")
        except ConfigError:
            return False
    return True


def _check_groups(optimizer: Config) -> None:
    """Refuse an option of a group that its optimizer could not have."""
    for group in optimizer.get("groups") or []:
        own = "kind" in group or "_target_" in group
        if "kind" in group and group["kind"] == optimizer.get("kind"):
            raise ConfigError(
                f"optimizer.groups: kind={group['kind']}: this is the optimizer of all groups; "
                "leave it out"
            )
        node = group if own else {**optimizer, **group}
        check_node(node, OptimizerSettings, "optimizer.groups: ")
        if sentence := refusal("optimizer.groups: hidden", group.get("hidden", True), bool):
            raise ConfigError(sentence)
        if sentence := refusal("optimizer.groups: match", group.get("match", ""), str):
            raise ConfigError(f"{sentence} in quotes, as in match:'1'")
        lr_scale = group.get("lr_scale", 1.0)
        if sentence := refusal("optimizer.groups: lr_scale", lr_scale, NonNegative):
            raise ConfigError(sentence)


def check_node(node: Config, schema: type[Settings], prefix: str) -> None:
    """Refuse values of a node outside their ranges; `prefix` precedes its keys as typed."""
    foreign = not str(node.get("_target_", "gcbench.")).startswith("gcbench.")
    for name, hint in hints_of(schema).items():
        if name not in node or (foreign and name not in OF_ANY_TARGET):
            continue
        if sentence := refusal(f"{prefix}{name}", node[name], hint):
            raise ConfigError(sentence)


def check_division(trainer: TrainerSettings) -> None:
    """Refuse workers that do not divide evenly over processes, or batches over micro-batches."""
    if trainer.processes and trainer.workers % trainer.processes:
        raise ConfigError(
            f"trainer.processes={trainer.processes} cannot share trainer.workers={trainer.workers} "
            "workers evenly; type a number of processes that divides them"
        )
    if trainer.batch_size % trainer.accumulate:
        raise ConfigError(
            f"trainer.accumulate={trainer.accumulate} cannot split "
            f"trainer.batch_size={trainer.batch_size} evenly; type a number that divides it"
        )


def check_nesterov(optimizer: Config) -> None:
    """Refuse Nesterov momentum if the momentum is 0."""
    if optimizer.get("nesterov") and optimizer.get("momentum") == 0:
        raise ConfigError(
            "optimizer.nesterov=true looks ahead along the momentum, and optimizer.momentum=0; "
            "type optimizer.momentum=0.9, or optimizer.nesterov=false"
        )


def refuse_twice(overrides: Sequence[str], sweep: bool = False) -> None:
    """Raise ConfigError for a key that was typed twice: the last value would win without a word.

    `sweep` says that several values of a key, separated by commas, are a sweep.
    """
    by_key: dict[str, list[str]] = {}
    for override in overrides:
        name = _name(override)
        by_key.setdefault(OTHER_NAMES.get(name, name), []).append(override)
    for same in by_key.values():
        names = list(dict.fromkeys(map(_name, same)))
        if names[1:]:
            raise ConfigError(f"{' and '.join(names)} are one key; type only {same[0]}")
        if same[1:]:
            values = list(dict.fromkeys(override.partition("=")[2] for override in same))
            several = sweep and values[1:] and not any(v == "" or "(" in v for v in values)
            swept = f"{names[0]}={','.join(values)}"
            advice = f", or gcbench -m {swept}, without braces, for a sweep" if several else ""
            raise ConfigError(f"{' and '.join(same)}: type only one of them{advice}")


def _name(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def refuse_empty_sweep(arguments: Sequence[str], config_dir: str | None) -> None:
    """Raise ConfigError for a `group=glob(pattern)` that no choice of the group matches.

    Hydra would end such an empty sweep without an error.
    """
    for argument in arguments:
        if not (typed := re.fullmatch(r"\+?([\w/]+)=glob\(([^][,]+)\)", argument)):
            continue
        group, pattern = typed[1], typed[2].strip("'\"")
        rows = row_names(group.removeprefix("experiment/"))
        choices = sorted({*choices_in(group, config_dir), *rows})
        if fnmatch.filter(choices, pattern):
            continue
        roots = [conf_directory(), *([Path(config_dir)] if config_dir else [])]
        groups = {str(d.relative_to(r)) for r in roots for d in r.rglob("*") if d.is_dir()}
        groups |= {f"experiment/{table}" for table in tables_in(table_directory())}
        advice = f"type one of {', '.join(choices)}"
        if not choices:
            likely = nearest(group, groups, most=1) or ["experiment/PAPER/TABLE"]
            advice = f"did you mean {argument.replace(group, likely[0])}?"
        raise ConfigError(f"{argument}: this matches no choice; {advice}")


def refuse_idle(flat: Flat, typed: Collection[str]) -> None:
    """Raise IdleKeyError for a typed key that nothing reads: a sweep of it would repeat one run."""
    refuse_idle_keys(flat, typed, NEEDS)
    milestones = flat.get("schedule.milestones")
    if flat.get("schedule.kind") == "steps" and not milestones:
        raise IdleKeyError(
            f"schedule.milestones={format_value(milestones)}: with schedule=steps the "
            "rate falls at milestones; type some, as in schedule.milestones=[0.5,0.75], or "
            "schedule=constant"
        )


def check_kinds(config: Config) -> None:
    """Refuse a model that cannot read the data; remove `reads` and `kind`, which only say so."""
    reads, kind = config["model"].pop("reads", None), config["dataset"].pop("kind", None)
    choices = config["choices"]
    if reads is None or kind is None or kind in reads:
        return
    fitting = {
        "tokens": "dataset=wikitext2",
        "image": "dataset=cifar10",
        "vector": "dataset=synthetic",
        "speech": "dataset=an4",
    }
    models = {
        "tokens": "model=lstm",
        "image": "model=resnet20",
        "vector": "model=mlp",
        "speech": "model=an4_lstm",
    }
    raise ConfigError(
        f"model={choices['model']} reads {' or '.join(reads)}, "
        f"dataset={choices['dataset']} holds {kind}; type {fitting[reads[0]]} or {models[kind]}"
    )


LONGEST = 150  # bytes; a file system allows 255 for a name, to which knobs, seed and hash are added
NAME_HINT = (
    "type a name of printable characters that has no slash, starts with no dot or dash and takes "
    f"no more than {LONGEST} bytes, as in name=first-try"
)


def is_folder_name(name: str) -> bool:
    """Return whether a name can be a folder, and is not read as an option when it is typed."""
    return (
        bool(name)
        and name.isprintable()
        and not set(name) & set("/\\")
        and name[0] not in ".-"
        and len(name.encode()) <= LONGEST
    )


def refuse_name(name: Any) -> None:
    """Raise ConfigError for a name that no folder can have."""
    if isinstance(name, str) and not is_folder_name(name):
        raise ConfigError(f"name={name!r}: {NAME_HINT}")
