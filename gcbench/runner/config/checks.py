"""Checks of what was typed and composed; a mistake is refused in one sentence."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from gcbench.core.conf import Config, choices_in, conf_folders
from gcbench.core.errors import ConfigError, IdleKeyError, nearest
from gcbench.core.fields import Settings, format_value, hints_of, refusal, wanted
from gcbench.core.method_files import refuse_idle_keys
from gcbench.runner.config.choices import row_names, table_directory, tables_in
from gcbench.runner.config.composed import CHANGED_BY_BUDGETS
from gcbench.runner.identity import Flat
from gcbench.runner.settings.config import NEEDS, PARTS, SCHEMAS
from gcbench.runner.settings.groups import (
    OTHER_NAMES,
    OptimizerSettings,
    ParameterGroup,
    TrainerSettings,
)

# Groups whose files have only the keys that their class takes.
WITH_KEYS_BY_CHOICE = ("optimizer", "estimator", "network")

S = TypeVar("S", bound=Settings)


def validate(kind: type[S], node: Config, prefix: str = "") -> S:
    """Return the model of a node of plain values; `prefix` precedes its keys as they are typed.

    Raises ConfigError for the first value that is outside its range.
    """
    try:
        return kind.model_validate(node)
    except ValidationError as error:
        place, *inside = error.errors(include_url=False)[0]["loc"]
        raise ConfigError(_sentence(kind, node, prefix, str(place), inside)) from None


def _sentence(
    kind: type[Settings], node: Config, prefix: str, name: str, inside: Sequence[int | str]
) -> str:
    """Return the error message for a key of a node, or for what is `inside` of it."""
    if inside and name in PARTS:
        own = name == "method"
        below, prefix = (node, prefix) if own else (node[name], f"{prefix}{name}.")
        return _sentence(PARTS[name], below, prefix, str(inside[0]), inside[1:])
    if name not in kind.model_fields:
        known = list(kind.model_fields)
        close = nearest(name, known, most=1)
        advice = f"did you mean {prefix}{close[0]}?" if close else f"it has {', '.join(known)}"
        return f"{prefix}{name}: no such key, in a file of the configuration; {advice}"
    hint = hints_of(kind)[name]
    if name not in node:
        example = wanted(f"{prefix}{name}", hint)
        return f"{prefix}{name}: a file of the configuration lacks this key; write {example}"
    return str(refusal(f"{prefix}{name}", node[name], hint))


def values_fit(tree: Config, typed: Collection[str]) -> bool:
    """Return whether the typed values of those nodes are in their ranges that a budget changes."""
    for group in CHANGED_BY_BUDGETS:
        named = tree[group].items()
        asked = {k: v for k, v in named if k == "_target_" or f"{group}.{k}" in typed}
        try:
            SCHEMAS[group].model_validate(asked)
        except ValidationError:
            return False
    return True


def check_groups(optimizer: OptimizerSettings) -> None:
    """Refuse an option of a group that its optimizer could not have."""
    for group in optimizer.groups:
        if "kind" in group and group["kind"] == optimizer.kind:
            raise ConfigError(
                f"optimizer.groups: kind={group['kind']}: this is the optimizer of all groups; "
                "leave it out"
            )
        own = "kind" in group or "_target_" in group or optimizer.target is None
        target = {} if own else {"_target_": optimizer.target}
        validate(ParameterGroup, {**target, **group}, "optimizer.groups: ")


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


def check_target(trainer: TrainerSettings) -> None:
    """Refuse two targets: a result says of one when it was reached."""
    if trainer.target not in (None, trainer.stop_at) and trainer.stop_at is not None:
        raise ConfigError(
            f"trainer.target={trainer.target:g} trainer.stop_at={trainer.stop_at:g}: a run has one "
            f"target; type only trainer.stop_at={trainer.stop_at:g}, or only trainer.target"
        )


def check_nesterov(optimizer: OptimizerSettings) -> None:
    """Refuse Nesterov momentum if the momentum is 0."""
    if optimizer.nesterov and optimizer.momentum == 0:
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
        roots = conf_folders(config_dir)
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


def check_kinds(choices: Mapping[str, str], reads: Sequence[str] | None, kind: str | None) -> None:
    """Refuse a model that cannot read the data: what its file says that it `reads`, and `kind`."""
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
