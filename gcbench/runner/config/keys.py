"""The keys of a command: which choices have them, and which was meant by what was typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from gcbench.core.conf import choices_in, conf_directory, included_in, read_yaml
from gcbench.core.errors import as_known, folded, nearest
from gcbench.core.fields import hints_of, refusal, wanted
from gcbench.core.method_files import NO_KNOBS, sort_keys
from gcbench.core.method_keys import MethodSettings
from gcbench.runner.conf_files import file_of
from gcbench.runner.config.checks import refuse_twice
from gcbench.runner.config.choices import GROUPS
from gcbench.runner.settings.config import SCHEMAS
from gcbench.runner.settings.groups import OTHER_NAMES, BenchSettings, RunSettings

MANY = 8  # choices that have a key; if more do, those are listed that lack it

# What papers and other libraries call a key, where its spelling does not tell.
SYNONYMS = {
    folded(name): key
    for key, names in {
        "fraction": "compress_ratio density k keep_ratio ratio sparsity topk",
        "bits": "bit_width n_bits nbits num_bits quantization_bits",
        "clip_norm": "grad_clip gradient_clip_val max_grad_norm",
        "error_feedback": "ef memory",
        "compressor": "algorithm codec compression method",
        "schedule": "lr_schedule lr_scheduler scheduler",
        "schedule.warmup_epochs": "warmup warmup_steps",
        "optimizer.lr": "learning_rate",
        "optimizer.weight_decay": "wd",
        "estimator.every": "diloco inner_steps local_sgd local_steps sync_every",
        "trainer.workers": "n np nproc nproc_per_node num_processes num_workers world_size",
        "trainer.epochs": "max_epochs num_epochs num_train_epochs",
        "trainer.batch_size": "batch bs per_device_train_batch_size",
        "trainer.accumulate": "accumulate_grad_batches grad_accum gradient_accumulation_steps",
        "trainer.precision": "amp autocast dtype mixed_precision",
    }.items()
    for name in names.split()
}


def method_keys() -> dict[str, list[str]]:
    """Return the keys that each choice of compressor adds, in the order of their model."""
    return {choice: sort_keys(own) for choice, own in keys_by_choice("compressor").items()}


@cache  # as there are a hundred files
def keys_by_choice(group: str) -> Mapping[str, Sequence[str]]:
    """Return the keys that the file of each choice of a group has."""
    return {choice: keys_in(file_of(group, choice)) for choice in choices_in(group)}


def keys_in(file: Path) -> list[str]:
    """Return the keys of a file and of the files in its defaults list."""
    node = read_yaml(file)
    shared = [entry.partition("@")[0] for entry in node.pop("defaults", []) if entry != "_self_"]
    inherited = [
        key
        for name in shared
        for key in (
            SCHEMAS[file.parent.name].model_fields
            if name == "schema"
            else keys_in(included_in(file, name))
        )
    ]
    return [key for key in dict.fromkeys([*inherited, *node]) if key not in NO_KNOBS]


@dataclass
class Keys:
    """The keys of `gcbench` or of `gcbench bench`, as they and the names of groups are typed."""

    hints: Mapping[str, tuple[Any, str]]  # annotation and meaning of keys that a model has
    having: Mapping[str, Mapping[str, Sequence[str]]]  # the choices that have a key, by group
    chosen: Mapping[str, Sequence[str]]  # by group; empty where a file may have made the choices

    @classmethod
    def of_command(cls, benchmark: bool, overrides: Sequence[str]) -> Keys:
        """Return the keys with the choices that `overrides` make."""
        groups = ("compressor",) if benchmark else GROUPS
        having: dict[str, dict[str, list[str]]] = {group: {} for group in groups}
        for group in groups:
            for choice, keys in keys_by_choice(group).items():
                for key in keys:
                    full = key if group == "compressor" else f"{group}.{key}"
                    having.setdefault(full, {}).setdefault(group, []).append(choice)
        by_file = any("experiment" in one or "searchpath" in one for one in overrides)
        chosen = {} if by_file else _choices(groups, benchmark, overrides)
        return cls(_hints(benchmark), having, chosen)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.hints, **self.having})

    def __contains__(self, key: str) -> bool:
        return key in self.hints or key in self.having

    def owners(self, key: str) -> list[str]:
        """Return which choices have a key, like `compressor=atomo, powersgd`."""
        owners = []
        for group, owning in self.having.get(key, {}).items():
            others = [choice for choice in choices_in(group) if choice not in owning]
            owners.append(
                f"every {group}= except {', '.join(others)}"
                if 0 < len(others) < len(owning) and len(owning) > MANY
                else f"{group}={', '.join(owning)}"
            )
        return owners

    def is_here(self, key: str) -> bool:
        """Return whether the typed choices have a key, or may have it."""
        owners = self.having.get(key, {})
        return not owners or any(
            not self.chosen or {*owning} & {*self.chosen[group]} for group, owning in owners.items()
        )

    def meant(self, key: str, value: str) -> str:
        """Return what to type in place of `key=value`, which nothing has; empty if unknown."""
        synonym = SYNONYMS.get(folded(leaf_of(key)), key)
        if synonym in self and synonym != key:
            return self._advice([synonym], value)
        known = [one for one in self if one != key]
        read = _read(value)
        fitting = [one for one in known if self._fits(one, read)]
        here = [one for one in fitting if self.is_here(one)]
        for like in (self._alike, _with_leaf, _spelled):
            for keys in (here, fitting, known):
                if likely := like(key, keys):
                    return self._advice(likely, value)
        return ""

    def admits(self, key: str, value: str) -> bool:
        """Return whether a value that was typed may be one of this key."""
        return self._fits(key, _read(value))

    def _fits(self, key: str, value: Any) -> bool:
        return key not in self.hints or refusal("", value, self.hints[key][0]) is None

    def _advice(self, likely: Sequence[str], value: str) -> str:
        likely = list(dict.fromkeys(OTHER_NAMES.get(key, key) for key in likely))
        first = likely[0]
        owned = ""
        if not self.is_here(first):
            likely, owned = likely[:1], f", which belongs to {' or '.join(self.owners(first))}"
        if not self.admits(first, value):
            return f"type {wanted(first, self.hints[first][0])}{owned}"
        return f"did you mean {' or '.join(f'{key}={value}' for key in likely)}{owned}?"

    def _alike(self, key: str, keys: Sequence[str]) -> list[str]:
        """Return the keys of the same group that are spelled so, begin so or are described so."""
        group, _, leaf = key.rpartition(".")
        inside = [one for one in keys if one.startswith(f"{group}.")] if group else keys
        close = nearest(leaf, {leaf_of(one) for one in inside}, like=0.7)
        word = leaf.replace("_", " ")
        return (
            _with_leaf(key, inside)
            or [one for name in close for one in inside if leaf_of(one) == name]
            or [one for one in inside if leaf_of(one).startswith(leaf)]
            or [one for one in inside if one in self.hints and self.hints[one][1].startswith(word)]
        )


def _with_leaf(key: str, keys: Sequence[str]) -> list[str]:
    return [one for one in keys if leaf_of(one) == leaf_of(key)]


def _spelled(key: str, keys: Sequence[str]) -> list[str]:
    return nearest(key, keys, most=1, like=0.8)


def leaf_of(key: str) -> str:
    return key.rpartition(".")[2]


def _choices(
    groups: Sequence[str], benchmark: bool, overrides: Sequence[str]
) -> dict[str, list[str]]:
    """Return the choices of each group: what was typed, or the one by default."""
    file = conf_directory() / f"{'bench' if benchmark else 'config'}.yaml"
    chosen = {
        group: [choice]
        for entry in read_yaml(file)["defaults"]
        if isinstance(entry, dict)
        for group, choice in entry.items()
    }
    for override in overrides:
        group, _, value = override.partition("=")
        if group in groups:
            chosen[group] = [as_known(one, choices_in(group)) for one in value.split(",")]
    return chosen


def _hints(benchmark: bool) -> dict[str, tuple[Any, str]]:
    """Return the annotation and the meaning of all keys, by key as it is typed."""
    own = {"": BenchSettings} if benchmark else {"": RunSettings}
    groups = {} if benchmark else {f"{group}.": schema for group, schema in SCHEMAS.items()}
    models = [("", MethodSettings), *own.items(), *groups.items()]
    hints = {
        f"{prefix}{name}": (hints_of(model)[name], field.description or "")
        for prefix, model in models
        for name, field in model.model_fields.items()
    }
    return hints | {typed: hints[key] for typed, key in OTHER_NAMES.items() if key in hints}


def read_knobs(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the typed values of overrides as Hydra parses them, by key, each typed once."""
    refuse_twice(overrides)
    return parse_overrides(overrides)


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides as Hydra parses them, by key; the last one counts."""
    parsed = {
        one.get_key_element(): one.value()
        for one in OverridesParser.create().parse_overrides(list(overrides))
    }
    return {k: v.text if isinstance(v, QuotedString) else v for k, v in parsed.items()}


def _read(value: str) -> Any:
    """Return a typed value as Hydra parses it, or the text if it cannot."""
    try:
        return parse_value(value)
    except HydraException:
        return value


def parse_value(value: str) -> Any:
    """Return a typed value as Hydra parses it."""
    return read_knobs([f"key={value}"])["key"]
