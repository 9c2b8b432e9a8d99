"""Compose and check a configuration.

Imports no torch, so that help and mistakes answer at once.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from glob import escape
from pathlib import Path
from string import Template
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gcbench.config.budget import PAPER, apply_budget
from gcbench.config.checks import SCHEMAS, check_division, check_kinds, check_knobs, to_floats
from gcbench.config.directory import conf_directory
from gcbench.config.errors import Config, ConfigError
from gcbench.config.help import (
    NO_KNOBS,
    keys_by_choice,
    list_choices,
    list_keys,
    list_method_knobs,
    sort_keys,
)
from gcbench.config.links import emulated_link
from gcbench.config.names import refuse_name
from gcbench.config.sentences import sentence_of, unknown_key
from gcbench.identity import (
    ELSEWHERE,
    digest,
    flatten_config,
    format_value,
    relevant_config,
    sort_knobs,
)
from gcbench.method_settings import MethodSettings
from gcbench.settings import BenchSettings, RunSettings

# Groups whose `_target_` may be typed: any class, with arguments of its own.
WITH_TARGETS = ("model", "dataset", "optimizer", "schedule")
CALLED_BY = ("model", "dataset", "compressor")  # the choices that make a run's name
# Keys of how often a run reports, which tell nobody what it is.
HOW_OFTEN = {f"trainer.{key}" for key in ("log_every", "eval_every", "error_every")}
KNOB = "+"  # before each knob in the name of a directory; no choice has it
LONGEST = 60  # characters that knobs take there


def register() -> None:
    """Make schemas and resolvers known to Hydra; safe to call twice."""
    # Our files for these launchers take the place of the plugin's own; Hydra says five times that
    # this will change.
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/submitit_")
    _store_schemas()
    resolvers: dict[str, Callable[..., str | int]] = {
        "levels": _levels_of_bits,
        "run_name": lambda *, _root_: run_name(_root_),
        "bench_name": lambda *, _root_: bench_name(_root_),
        "run_directory": lambda *, _root_: run_directory(_root_),
        "knobs": lambda: list_method_knobs(conf_directory()),
        "keys": list_keys,
        "choices": lambda group: list_choices(conf_directory(), group),
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(f"gcbench.{name}", resolver, replace=True)


@cache
def _store_schemas() -> None:
    for group, node in SCHEMAS.items():
        # Files of these groups have only the keys that their class takes.
        if group not in ("optimizer", "estimator"):
            ConfigStore.instance().store(group=group, name="schema", node=node)


def compose_words(words: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """Return what Hydra makes of a command line; files in `config_dir` count as those in conf/."""
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(
            f"--config-dir {config_dir}: there is no such folder; type one with your "
            "compressor/NAME.yaml in it"
        )
    searched = [f"hydra.searchpath=['{Path(config_dir).resolve()}']"] if config_dir else []
    with _open_conf():
        return compose("config", [*open_nodes(words), *searched], return_hydra_config=True)


def open_nodes(words: Sequence[str]) -> list[str]:
    """Return words in which keys beside a group's `_target_` may be any that the class takes.

    So may those of the model with a budget, which may put another in its place.
    """
    bare = [word.lstrip("+") for word in words]
    targets = tuple(f"{group}._target_=" for group in WITH_TARGETS)
    opened = tuple(word.partition("_target_=")[0] for word in bare if word.startswith(targets))
    if any(word.startswith("budget=") for word in bare):
        opened = (*opened, "model.")
    return [
        f"++{word}" if word.startswith(opened) else typed
        for typed, word in zip(words, bare, strict=True)
    ]


def resolve_words(words: Sequence[str]) -> tuple[Config, str]:
    """Return the checked configuration of a command line, and the directory of its run.

    Raises ConfigError in place of all errors of Hydra and OmegaConf.
    """
    register()
    try:
        composed = compose_words(words)
        return resolve(composed), run_directory(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(sentence_of(error)) from error


@contextmanager
def _open_conf() -> Iterator[None]:
    """Open conf/ for composing, also inside of an application that uses Hydra for itself."""
    outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(conf_directory()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def help_of(config: str) -> str:
    """Return what --help says of conf/<config>.yaml."""
    with _open_conf():
        return Template(compose(config, return_hydra_config=True).hydra.help.template).substitute()


def compose_methods(
    choices: Sequence[str], config_dir: str | None = None
) -> dict[str, tuple[Config, list[str]]]:
    """Return the node and the knobs of each choice of compressor.

    All are composed at once, as composing is what takes time.
    """
    side_by_side = [f"+compressor@methods.{choice}={choice}" for choice in choices]
    rest = compose_words(["~compressor", *side_by_side], config_dir)
    OmegaConf.set_struct(rest, False)
    methods = {}
    for choice, file in rest.pop("methods").items():
        node = cast(DictConfig, OmegaConf.merge(rest, file)).compressor
        knobs = sort_keys({str(key) for key in file} - {*rest, *NO_KNOBS})
        methods[choice] = cast(Config, OmegaConf.to_container(node, resolve=True)), knobs
    return methods


def method_node(target: str, settings: Sequence[str]) -> Config:
    """Return a `_target_` with its arguments, which are typed as key=value."""
    node = OmegaConf.to_container(OmegaConf.from_dotlist(list(settings)))
    assert isinstance(node, dict)
    return {"_target_": target, **{str(k): v for k, v in node.items()}}


def resolve(composed: DictConfig) -> Config:
    """Return the checked configuration as plain values, with the `choices` of its groups.

    `composed` is what Hydra made of the command line.
    """
    config = _resolved(composed, MethodSettings, RunSettings)
    config["knobs"] = _typed_knobs(composed, config)
    check_division(config["trainer"])
    emulated_link(config["network"])  # refuses what is no rate or time
    check_kinds(config, config["choices"])
    return config


def resolve_benchmark(composed: DictConfig) -> Config:
    """Return the checked configuration of `gcbench bench`."""
    return _resolved(composed, MethodSettings, RunSettings, BenchSettings)


def _resolved(composed: DictConfig, *keys: type[Any]) -> Config:
    config = _settled(composed)
    typed = _typed_keys(composed)
    _refuse_added_keys(composed, config)
    refuse_name(config["name"])
    check_knobs(config, *keys)
    _refuse_idle_bucket_size(config, typed)
    return config


def _settled(composed: DictConfig) -> Config:
    """Return plain values with the budget applied, `choices` by group, and `experiment`.

    That is paper/table/row, or None.
    """
    tree = OmegaConf.create(composed)
    OmegaConf.set_struct(tree, True)
    typed = _typed_keys(composed)
    choices, experiment = _choices(composed), _experiment(composed)
    if "budget" in tree:
        apply_budget(tree, choices, typed, conf_directory())
    _settle_bits(tree, typed)
    config = {"choices": choices, "experiment": experiment, **_plain(tree)}
    for group in WITH_TARGETS:
        _keep_typed_keys_of_other_target(group, config, typed)
    if "optimizer" in config:
        _check_rate(config["optimizer"])
        for group in ("optimizer", "estimator"):
            to_floats(config[group], SCHEMAS[group])
    return config


def _check_rate(optimizer: Config) -> None:
    """Refuse an optimizer without a learning rate, which schedules, budgets and reports read."""
    if "lr" not in optimizer:
        raise ConfigError(
            f"optimizer._target_={optimizer['_target_']}: type its learning rate too, as in "
            "optimizer.lr=0.001"
        )


def run_name(composed: DictConfig) -> str:
    """Return the name of a run's directory: what the run is called, its knobs, seed and hash.

    It is readable, and differs for runs that differ in anything that matters. Where the same run
    has a directory already for which other knobs were typed, as those that are their default, it is
    that one's name.
    """
    config = _settled(composed)
    refuse_name(config["name"])
    choices = config["choices"]
    parts = (choices[group].rsplit(".", 1)[-1] for group in CALLED_BY)
    title = config["name"] or config["experiment"] or "-".join(parts)
    budget = "" if choices["budget"] == PAPER else f"-{choices['budget']}"
    ending = f"-s{config['seed']}-{digest(relevant_config(config))}"
    name = f"{title}{budget}{_knobs_in_name(_typed_knobs(composed, config))}{ending}"
    outputs = Path(composed.outputs)
    if (outputs / name).is_dir():
        return name
    title, _, begin = f"{title}{budget}".rpartition("/")
    alike = (outputs / title).glob(f"{escape(begin)}*{ending}")
    known = [path for path in alike if path.name[len(begin) : -len(ending)][:1] in ("", KNOB)]
    return str(min(known).relative_to(outputs)) if known else name


def _typed_knobs(composed: DictConfig, config: Config) -> dict[str, Any]:
    """Return what was typed of all that changes numbers, beside what the run is called by.

    Keys are groups with their choice, a method's knobs and, behind these, dotted ones.
    """
    named = {"budget"} if config["name"] or config["experiment"] else {*CALLED_BY, "budget"}
    choices = {k: v for k, v in config["choices"].items() if k not in {*named, *ELSEWHERE}}
    known = {**flatten_config(config), **choices}
    typed = {key.removesuffix("._target_") for key in _typed_keys(composed) - HOW_OFTEN}
    return {key: known[key] for key in sort_knobs(typed) if key in known}


def _knobs_in_name(knobs: Config) -> str:
    """Return knobs as in `+bits4+lr0.1+norm_l2`, as many as a name can have."""
    text = ""
    for key, value in knobs.items():
        short = re.sub(r"[^\w.-]+", "_", format_value(value)).strip("_")
        between = "_" if short[:1].isalpha() else ""
        knob = f"{KNOB}{key.rpartition('.')[2]}{between}{short}"
        text += knob if len(text) + len(knob) <= LONGEST else ""
    return text


def run_directory(composed: DictConfig) -> str:
    """Return where a run's files go, from the folder in which the command was typed."""
    return str(composed.directory or Path(composed.outputs) / run_name(composed))


def bench_name(composed: DictConfig) -> str:
    """Return the name of a benchmark's folder."""
    config = _plain(composed)
    refuse_name(config["name"])
    return f"{config['name'] or _choices(composed)['compressor']}-{digest(config)}"


def first_words(config: Config, directory: str) -> str:
    """Return what can be said of a run at once, before anything that takes seconds is imported."""
    choices, workers = config["choices"], config["trainer"]["gpus"]
    device = config["trainer"]["device"]
    where = "GPUs, or the CPU where there are none" if device == "auto" else device
    made_of = " ".join(choices[group] for group in CALLED_BY)
    return f"{made_of}: {workers} worker{'s' * (workers > 1)} on {where}, in {directory}"


def learning_rate_notice(config: Config) -> str | None:
    """Return what to say of a learning rate far from the one that the method was published with."""
    published = config.get("recommended", {}).get("lr")
    lr = config["optimizer"]["lr"]
    if published is None or published / 10 <= lr <= published * 10:
        return None
    return (
        f"optimizer.lr={lr:g} is more than 10 x off the rate that "
        f"compressor={config['choices']['compressor']} was published with; "
        f"type optimizer.lr={published:g} to use that one"
    )


def budget_notice(config: Config) -> str | None:
    """Return what a budget has made of a run; None for the paper's own."""
    trainer, name = config["trainer"], config["choices"]["budget"]
    if name == PAPER:
        return None
    length = (
        f"trainer.max_steps={trainer['max_steps']}"
        if trainer["max_steps"]
        else f"trainer.epochs={trainer['epochs']:g}"
    )
    return (
        f"budget={name}: model={config['choices']['model']} trainer.gpus={trainer['gpus']} "
        f"trainer.batch_size={trainer['batch_size']} {length} "
        f"optimizer.lr={config['optimizer']['lr']:g}"
    )


def _levels_of_bits(bits: Any) -> int:
    return (
        int(2 ** (bits - 1) - 1) if isinstance(bits, int) and 2 <= bits <= 8 else 7
    )  # `bits` itself is refused later


def _plain(tree: DictConfig) -> Config:
    masked = OmegaConf.masked_copy(tree, [str(k) for k in tree if k != "hydra"])
    plain = OmegaConf.to_container(masked, resolve=True, throw_on_missing=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def _choices(composed: DictConfig) -> dict[str, str]:
    """Return the choice of each group; another `_target_` than the file's is the choice."""
    chosen = composed.hydra.runtime.choices.items()
    choices = {k: v for k, v in chosen if "/" not in k and k != "experiment" and isinstance(v, str)}
    typed = _typed_keys(composed)
    for group in WITH_TARGETS:
        if f"{group}._target_" in typed:
            choices[group] = composed[group]["_target_"]
    return choices


def _experiment(composed: DictConfig) -> str | None:
    """Return paper/table/row of the experiment that was chosen, in either spelling; or None."""
    choices = composed.hydra.runtime.choices.items()
    chosen = {k: v for k, v in choices if k.partition("/")[0] == "experiment"}
    if len(chosen) > 1:
        raise ConfigError(
            f"{' and '.join(f'+{k}={v}' for k, v in chosen.items())}: a run is one row; "
            "type only one of them"
        )
    return next(
        (f"{group}/{row}".removeprefix("experiment/") for group, row in chosen.items()), None
    )


def _typed_keys(composed: DictConfig) -> set[str]:
    return {o.lstrip("+~").split("=", 1)[0] for o in composed.hydra.overrides.task}


def _settle_bits(tree: DictConfig, typed: set[str]) -> None:
    """Set `bits` to what typed `levels` need."""
    if (
        "levels" not in tree
        or OmegaConf.is_interpolation(tree, "levels")
        or not isinstance(tree.levels, int)
    ):
        return
    bits = (2 * tree.levels).bit_length()
    if "bits" in typed and tree.bits != bits:
        raise ConfigError(
            f"levels={tree.levels} needs {bits} bits a code, not bits={tree.bits}; "
            "type only one of bits and levels"
        )
    tree.bits = bits


def _keep_typed_keys_of_other_target(group: str, config: Config, typed: set[str]) -> None:
    """Drop the keys of a group's file where its target was replaced; those that were typed stay."""
    if f"{group}._target_" in typed:
        config[group] = {k: v for k, v in config[group].items() if f"{group}.{k}" in typed}


def _refuse_added_keys(composed: DictConfig, config: Config) -> None:
    """Refuse an added key that nothing reads, as in +rank=2 or +optimizer.betas=[0.9,0.95].

    What is added to a node with a `_target_` is for its class to refuse.
    """
    groups = {k.split("@")[0] for k in composed.hydra.runtime.choices}
    optimizers = keys_by_choice(conf_directory(), "optimizer")
    known = {group: {field.name for field in fields(schema)} for group, schema in SCHEMAS.items()}
    known["optimizer"] = set(optimizers.get(config["choices"].get("optimizer"), ()))
    for override in composed.hydra.overrides.task:
        key, _, value = override.lstrip("+").partition("=")
        group, _, leaf = key.partition(".")
        node = config.get(group) if leaf else None
        if not override.startswith("+") or key in groups or (node and "_target_" in node):
            continue
        if not leaf or (group in known and leaf not in known[group]):
            raise ConfigError(unknown_key(key, value, benchmark="trainer" not in config))


def _refuse_idle_bucket_size(config: Config, typed: set[str]) -> None:
    if config.get("per_layer") and "bucket_size" in typed:
        raise ConfigError(
            f"bucket_size={config['bucket_size']} means nothing with per_layer=true, "
            "where every tensor is one bucket; type only one of them"
        )
