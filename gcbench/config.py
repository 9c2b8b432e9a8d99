"""Composing and checking a configuration. Imports no torch, so that help and mistakes answer at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from gcbench import settings

Config = dict[str, Any]

# How and where a run executes and what it writes, but not what it computes: left out of a checkpoint's fingerprint.
EXECUTION = {"launcher", "device", "backend", "processes", "threads", "codec_backend", "record_gradients"}
BOOKKEEPING = {"checkpoint_steps", "checkpoint_minutes", "checkpoint_keep"}


class ConfigError(ValueError):
    """A mistake of the user's, in one sentence that names key, value and what to type instead."""


class RunFailed(RuntimeError):
    """A run that did not end well; its traceback, where there is one, has been shown."""


@dataclass(frozen=True)
class Knob:
    """A top-level key that compressors share: one meaning and one range wherever it appears."""

    kind: type
    fits: Callable[[Any], bool]
    hint: str
    optional: bool = False


KNOBS = {
    "levels": Knob(int, lambda v: 1 <= v <= 127, "a code of 2 to 8 bits holds 1 to 127 levels; type levels=7 or bits=4"),
    "bits": Knob(int, lambda v: 2 <= v <= 8, "a code costs 2 to 8 bits, sign included; type bits=4"),
    "bucket_size": Knob(int, lambda v: v >= 1, "a bucket holds at least 1 value; type bucket_size=512"),
    "level_count": Knob(int, lambda v: 2 <= v <= 256, "a code holds 2 to 256 levels in all; type level_count=5"),
    "per_layer": Knob(bool, lambda v: True, "type true or false"),
    "rank": Knob(int, lambda v: v >= 1, "the factors have at least 1 column; type rank=2"),
    "fraction": Knob(float, lambda v: 0 < v <= 1, "type a share of the values above 0 and up to 1, as in fraction=0.01"),
    "k": Knob(int, lambda v: v >= 1, "type a number of values of at least 1, as in k=10000"),
    "scales": Knob(
        list,
        lambda v: bool(v) and all(type(b) is int and 0 <= b <= 12 for b in v) and len(set(v)) == len(v),
        "type different whole numbers of bits from 0 to 12, as in scales=[2,6]",
    ),
    "momentum": Knob(float, lambda v: 0 <= v < 1, "type a weight of at least 0 and below 1, as in momentum=0.9"),
    "variant": Knob(
        str,
        lambda v: v in ("text", "alternating", "published", "unbiased"),
        "type variant=text or variant=alternating for unbiased_lowrank, variant=published or variant=unbiased for atomo",
    ),
    "index": Knob(str, lambda v: v in ("int32", "auto"), "type index=int32 or index=auto"),
    "min_size": Knob(int, lambda v: v >= 0, "type a number of values, as in min_size=10000, or 0 for none"),
    "dense_steps": Knob(int, lambda v: v >= 0, "type a number of steps, or 0 for none"),
    "norm": Knob(str, lambda v: v in ("linf", "l2"), "type norm=linf or norm=l2"),
    "exchange": Knob(
        str,
        lambda v: v in ("gather", "scatter", "scatter_coded", "sum", "hierarchical"),
        "type exchange=gather, scatter, scatter_coded, sum or hierarchical",
    ),
    "align": Knob(bool, lambda v: True, "type true or false"),
    "workers_per_node": Knob(
        int, lambda v: v >= 1, "a node has at least 1 worker; type workers_per_node=4, or null", optional=True
    ),
    "code": Knob(
        str,
        lambda v: v in ("fixed", "elias_dense", "elias_sparse", "ans"),
        "type code=fixed, elias_dense, elias_sparse or ans",
    ),
    "memory": Knob(str, lambda v: v in ("own", "aggregated"), "type memory=own or memory=aggregated"),
    "iterations": Knob(int, lambda v: v >= 1, "type a number of power iterations a step of at least 1, as in iterations=3"),
    "svd": Knob(bool, lambda v: True, "type true or false"),
    "warm_start": Knob(bool, lambda v: True, "type true or false"),
    "error_feedback": Knob(bool, lambda v: True, "type true or false"),
    "alpha": Knob(float, lambda v: v >= 0, "type a weight of at least 0, as in alpha=1"),
    "beta": Knob(float, lambda v: 0 <= v <= 1, "type a weight from 0 to 1, as in beta=1"),
    "clip_norm": Knob(float, lambda v: v > 0, "type a positive norm, as in clip_norm=0.4, or null", optional=True),
    "clip_sigma": Knob(float, lambda v: v > 0, "type a positive number, as in clip_sigma=2.5, or null", optional=True),
    "seed": Knob(int, lambda v: 0 <= v < 2**63, "type a seed of at least 0, as in seed=1"),
    "rerun": Knob(bool, lambda v: True, "type rerun=true or rerun=false"),
    "name": Knob(str, lambda v: v and "/" not in v, "type a name without slashes", optional=True),
    "outputs": Knob(str, bool, "type a folder, as in outputs=outputs"),
    "directory": Knob(str, bool, "type a folder, or null", optional=True),
}


def _numbers(value: list[Any], lowest: int) -> bool:
    return all(isinstance(v, (int, float)) and v == int(v) and v >= lowest for v in value)


BENCH_KNOBS = {
    "sizes": Knob(list, lambda v: bool(v) and _numbers(v, 1), "type numbers of values, as in sizes=[1000000,10000000]"),
    "draws": Knob(list, lambda v: set(v) <= {"normal", "laplace", "student"}, "type some of normal, laplace and student"),
    "recorded": Knob(str, bool, "type a file that trainer.record_gradients wrote, or null", optional=True),
    "rounds": Knob(int, lambda v: v >= 1, "type a number of at least 1"),
    "threads": Knob(int, lambda v: v >= 1, "type a number of at least 1"),
    "device": Knob(str, lambda v: v in ("auto", "cpu", "cuda"), "type device=auto, cpu or cuda"),
    "codec_backend": Knob(str, lambda v: v in ("compiled", "eager"), "type codec_backend=compiled or eager"),
    "workers": Knob(list, lambda v: _numbers(v, 2), "type numbers of processes of at least 2, as in workers=[2,4]"),
}


def register() -> None:
    """Makes schemas and resolvers known to Hydra; safe to call twice."""
    store = ConfigStore.instance()
    for group, node in {
        "trainer": settings.TrainerSettings,
        "optimizer": settings.OptimizerSettings,
        "schedule": settings.ScheduleSettings,
        "logger": settings.LoggerSettings,
        "resume": settings.ResumeSettings,
    }.items():
        store.store(group=group, name="schema", node=node)
    OmegaConf.register_new_resolver("gcbench.levels", _levels_of_bits, replace=True)
    OmegaConf.register_new_resolver("gcbench.run_name", lambda *, _root_: run_name(_root_), replace=True)
    OmegaConf.register_new_resolver("gcbench.bench_name", lambda *, _root_: bench_name(_root_), replace=True)
    OmegaConf.register_new_resolver("gcbench.run_directory", lambda *, _root_: _run_directory(_root_), replace=True)


def conf_directory() -> Path:
    """conf/ of the checkout where gcbench runs from one, else the copy inside the installed package."""
    package = Path(__file__).resolve().parent
    checkout = package.parent
    return checkout / "conf" if (checkout / "pyproject.toml").is_file() else package / "conf"


def compose_words(words: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """What Hydra makes of the words of a command line; files in `config_dir` count as if they lay in conf/."""
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir}: there is no such folder; type one with your compressor/NAME.yaml in it")
    searched = [f"hydra.searchpath=['{Path(config_dir).resolve()}']"] if config_dir else []
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        return compose("config", [*words, *searched], return_hydra_config=True)


def method_node(target: str, settings: Sequence[str]) -> Config:
    """A `_target_` with its arguments, typed as key=value."""
    if wrong := [word for word in settings if "=" not in word]:
        raise ConfigError(f"{wrong[0]}: type {target}'s settings as key=value, as in rank=2")
    node = OmegaConf.to_container(OmegaConf.from_dotlist(list(settings)))
    assert isinstance(node, dict)
    return {"_target_": target, **{str(k): v for k, v in node.items()}}


def resolve(composed: DictConfig) -> Config:
    """The checked configuration as plain values, with `choices`; `composed` is what Hydra made of the command line."""
    config = _resolved(composed, KNOBS)
    _check_trainer(config["trainer"])
    _check_schedule(config)
    _check_kinds(config, config["choices"])
    return config


def resolve_benchmark(composed: DictConfig) -> Config:
    """The checked configuration of `gcbench-bench`."""
    return _resolved(composed, {**KNOBS, **BENCH_KNOBS})


def _resolved(composed: DictConfig, knobs: Mapping[str, Knob]) -> Config:
    tree = OmegaConf.create(composed)
    OmegaConf.set_struct(tree, True)
    typed = _typed_keys(composed)
    _settle_bits(tree, typed)
    config = _plain(tree)
    choices = _choices(composed, config)
    for group in ("model", "dataset"):
        _keep_typed_keys_of_other_target(group, config, typed)
    _refuse_added_keys(composed)
    _check_knobs(config, knobs)
    _refuse_idle_bucket_size(config, typed)
    return {"choices": choices, **config}


def run_name(composed: DictConfig) -> str:
    """Of the run's directory: readable, and different for runs that differ in anything that matters."""
    config = _plain(composed)
    choices = _choices(composed, config)
    name = config["name"] or "-".join(choices[group].rsplit(".", 1)[-1] for group in ("model", "dataset", "compressor"))
    return f"{name}-s{config['seed']}-{_hash(_what_matters(config, BOOKKEEPING))}"


def bench_name(composed: DictConfig) -> str:
    """Of the benchmark's folder."""
    config = _plain(composed)
    return f"{config['name'] or _choices(composed, config)['compressor']}-{_hash(config)}"


def fingerprint(config: Config) -> str:
    """Equal for runs that compute the same numbers, wherever and however they execute."""
    return _hash(_what_matters(config, EXECUTION | BOOKKEEPING | {"gpus"}))


def learning_rate_notice(config: Config) -> str | None:
    """What to say when the learning rate is far from the one that the method was published with."""
    published = config.get("recommended", {}).get("lr")
    lr = config["optimizer"]["lr"]
    if published is None or published / 10 <= lr <= published * 10:
        return None
    return (
        f"optimizer.lr={lr:g} is more than 10 x off the rate that compressor={config['choices']['compressor']} "
        f"was published with; type optimizer.lr={published:g} to use that one"
    )


def _levels_of_bits(bits: Any) -> int:
    return int(2 ** (bits - 1) - 1) if isinstance(bits, int) and 2 <= bits <= 8 else 7  # `bits` itself is refused later


def _run_directory(composed: DictConfig) -> str:
    return str(composed.directory or Path(composed.outputs) / run_name(composed))


def _plain(tree: DictConfig) -> Config:
    masked = OmegaConf.masked_copy(tree, [str(k) for k in tree if k != "hydra"])
    plain = OmegaConf.to_container(masked, resolve=True, throw_on_missing=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def _choices(composed: DictConfig, config: Config) -> dict[str, str]:
    """Group to choice; another `_target_` than the chosen file's is the choice."""
    choices = {k: v for k, v in composed.hydra.runtime.choices.items() if "/" not in k and isinstance(v, str)}
    typed = _typed_keys(composed)
    for group in ("model", "dataset"):
        if f"{group}._target_" in typed:
            choices[group] = config[group]["_target_"]
    return choices


def _typed_keys(composed: DictConfig) -> set[str]:
    return {o.lstrip("+~").split("=", 1)[0] for o in composed.hydra.overrides.task}


def _settle_bits(tree: DictConfig, typed: set[str]) -> None:
    """`levels` is the primitive: where it is given, `bits` follows."""
    if "levels" not in tree or OmegaConf.is_interpolation(tree, "levels") or not isinstance(tree.levels, int):
        return
    bits = (2 * tree.levels).bit_length()
    if "bits" in typed and tree.bits != bits:
        raise ConfigError(
            f"levels={tree.levels} needs {bits} bits a code, not bits={tree.bits}; type only one of bits and levels"
        )
    tree.bits = bits


def _keep_typed_keys_of_other_target(group: str, config: Config, typed: set[str]) -> None:
    """The keys of a group's file belong to the file's target; another target gets only those that the user typed."""
    if f"{group}._target_" in typed:
        config[group] = {k: v for k, v in config[group].items() if f"{group}.{k}" in typed}


def _refuse_added_keys(composed: DictConfig) -> None:
    """`+rank=2` beside a method without ranks would be accepted and mean nothing."""
    groups = {k.split("@")[0] for k in composed.hydra.runtime.choices}
    for override in composed.hydra.overrides.task:
        key = override.lstrip("+").split("=", 1)[0]
        if override.startswith("+") and "." not in key and key not in groups:
            raise ConfigError(
                f"{override}: no part of gcbench reads {key} with these choices; type gcbench --cfg job to see the keys"
            )


def _check_knobs(config: Config, knobs: Mapping[str, Knob]) -> None:
    for name, knob in knobs.items():
        if name not in config or (config[name] is None and knob.optional):
            continue
        value = config[name]
        right = isinstance(value, (int, float) if knob.kind is float else knob.kind)
        if isinstance(value, bool) and knob.kind is not bool:
            right = False
        if not right or not knob.fits(value):
            raise ConfigError(f"{name}={value}: {knob.hint}")


def _refuse_idle_bucket_size(config: Config, typed: set[str]) -> None:
    if config.get("per_layer") and "bucket_size" in typed:
        raise ConfigError(
            f"bucket_size={config['bucket_size']} means nothing with per_layer=true, where every tensor is one bucket; "
            "type only one of them"
        )


def _check_trainer(trainer: Config) -> None:
    for key in (
        "gpus",
        "batch_size",
        "epochs",
        "accumulate",
        "log_every",
        "eval_batch_size",
        "checkpoint_keep",
    ):
        if trainer[key] < 1:
            raise ConfigError(f"trainer.{key}={trainer[key]}: type a number of at least 1")
    for key in ("max_steps", "processes", "threads", "eval_every", "error_every", "checkpoint_steps", "checkpoint_minutes"):
        if trainer[key] is not None and trainer[key] <= 0:
            raise ConfigError(f"trainer.{key}={trainer[key]}: type a number above 0, or null")
    if any(step < 0 for step in trainer["record_gradients"] or []):
        raise ConfigError(
            f"trainer.record_gradients={trainer['record_gradients']}: type steps from 0, as in "
            "trainer.record_gradients=[0,100,500], or null"
        )
    if trainer["processes"] and trainer["gpus"] % trainer["processes"]:
        raise ConfigError(
            f"trainer.processes={trainer['processes']} cannot share trainer.gpus={trainer['gpus']} workers evenly; "
            "type a number of processes that divides them"
        )
    if trainer["batch_size"] % trainer["accumulate"]:
        raise ConfigError(
            f"trainer.accumulate={trainer['accumulate']} cannot split trainer.batch_size={trainer['batch_size']} evenly; "
            "type a number that divides it"
        )


def _check_schedule(config: Config) -> None:
    for milestone in config["schedule"]["milestones"] or []:
        if not 0 < milestone < 1:
            raise ConfigError(
                f"schedule.milestones={config['schedule']['milestones']}: type fractions of the run between 0 and 1, "
                "as in schedule.milestones=[0.5,0.75]"
            )
    if config["optimizer"]["lr"] <= 0:
        raise ConfigError(f"optimizer.lr={config['optimizer']['lr']}: type a rate above 0, as in optimizer.lr=0.05")


def _check_kinds(config: Config, choices: dict[str, str]) -> None:
    """The reserved keys `reads` and `kind` are ours; targets never see them."""
    reads, kind = config["model"].pop("reads", None), config["dataset"].pop("kind", None)
    if reads is None or kind is None or kind in reads:
        return
    fitting = {"tokens": "dataset=wikitext2", "image": "dataset=cifar10", "vector": "dataset=synthetic"}
    models = {"tokens": "model=lstm", "image": "model=resnet20", "vector": "model=mlp"}
    raise ConfigError(
        f"model={choices['model']} reads {' or '.join(reads)}, dataset={choices['dataset']} holds {kind}; "
        f"type {fitting[reads[0]]} or {models[kind]}"
    )


def _what_matters(config: Config, trainer_keys: set[str]) -> Config:
    kept = {k: v for k, v in config.items() if k not in {"outputs", "directory", "rerun", "resume", "logger", "name", "data"}}
    kept["trainer"] = {k: v for k, v in config["trainer"].items() if k not in trainer_keys}
    kept["dataset"] = {k: v for k, v in config["dataset"].items() if k not in {"root", "download"}}
    kept.pop("choices", None)
    return kept


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
