"""Compose a configuration from conf/ and the overrides of a command line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from gcbench.core.conf import (
    Config,
    choices_in,
    conf_directory,
    method_files,
    refuse_no_folder,
)
from gcbench.core.errors import ConfigError
from gcbench.core.method_files import NO_KNOBS, levels_of_bits, read_method, sort_keys
from gcbench.runner.config.checks import WITH_KEYS_BY_CHOICE
from gcbench.runner.config.choices import WITH_TARGETS, row_names, store_rows
from gcbench.runner.config.errors import COMPOSITION_ERRORS
from gcbench.runner.config.hydra_versions import VERSION_BASE, register_resolver, store
from gcbench.runner.config.keys import parse_value
from gcbench.runner.config.naming import bench_name, run_directory, sweep_subdirectory
from gcbench.runner.config.resolve import resolve
from gcbench.runner.config.sentences import sentence_of, unknown_choice
from gcbench.runner.config.typed import readable
from gcbench.runner.settings.config import SCHEMAS, RunConfig
from gcbench.runner.settings.groups import BenchSettings, RunSettings


def compose_overrides(overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """Return the configuration that Hydra composes from a command line.

    Files in `config_dir` count like those in conf/. Raises ConfigError if there is no such folder.
    """
    refuse_no_folder(config_dir)
    overrides = readable(overrides, config_dir)
    store_rows(overrides, own_files=bool(config_dir))
    searched = [f"hydra.searchpath=['{Path(config_dir).resolve()}']"] if config_dir else []
    with _open_conf():
        return compose("config", [*open_nodes(overrides), *searched], return_hydra_config=True)


def open_nodes(overrides: Sequence[str]) -> list[str]:
    """Return overrides with `++` before keys that Hydra would refuse if the chosen files lack them.

    These are the keys of a group whose `_target_` was typed, as its class may take any keys, and
    those of the model if there is a budget, which may replace the model. Raises ConfigError for a
    choice that is not a name, such as compressor=null.
    """
    bare = [override.lstrip("+") for override in overrides]
    for override in bare:
        _refuse_value_as_choice(override)
        _refuse_functions_without_asserts(override)
    targets = tuple(f"{group}._target_=" for group in WITH_TARGETS)
    opened = tuple(
        override.partition("_target_=")[0] for override in bare if override.startswith(targets)
    )
    if any(override.startswith("budget=") for override in bare):
        opened = (*opened, "model.")
    return [
        f"++{override}" if override.startswith(opened) else typed
        for typed, override in zip(overrides, bare, strict=True)
    ]


def _refuse_value_as_choice(override: str) -> None:
    group, _, value = override.partition("=")
    known = choices_in(group) or row_names(group.removeprefix("experiment/"))
    if group and known:
        for choice in filter(re.compile(r"[\w.+-]+").fullmatch, value.split(",")):
            if not isinstance(parse_value(choice), str):
                raise ConfigError(unknown_choice(group, choice, known))


def _refuse_functions_without_asserts(override: str) -> None:
    """Refuse a range(2,4) where Python leaves out asserts, in one of which Hydra reads on."""
    if not __debug__:
        try:
            OverridesParser.create().parse_override(override)
        except HydraException:
            return  # which is told when the override is composed
        except Exception as error:
            raise ConfigError(
                f"{override}: Hydra cannot read functions under PYTHONOPTIMIZE or python -O; type "
                "PYTHONOPTIMIZE= before the command, or the values with commas between them"
            ) from error


@contextmanager
def _open_conf() -> Iterator[None]:
    """Open conf/ for composing, also within an application that uses Hydra itself."""
    register()
    outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(conf_directory()), **VERSION_BASE):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def split_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every point of a sweep, as `gcbench -m` would run them in order."""
    store_rows(overrides)
    with _open_conf():
        return points_of(readable(overrides))


def points_of(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every point, in the order of Hydra's own sweeper.

    Hydra must have been started, as glob(*) stands for files that it finds. Raises HydraException
    for an interval(a,b), of which only a search tries values.
    """
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    values: dict[str, list[str]] = {}
    for override in parser.parse_overrides(list(overrides)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [override.get_value_element_as_str()]
        elif override.is_discrete_sweep():
            values[key] = list(override.sweep_string_iterator())
        else:
            raise HydraException(f"BasicSweeper does not support {override.input_line}")
    return [
        [f"{key}={value}" for key, value in zip(values, point, strict=True)]
        for point in product(*values.values())
    ]


def find_method(
    name: str, config_dir: str | None = None, overrides: Sequence[str] = ()
) -> tuple[Config, list[str]]:
    """Return the `compressor` node of a method, and its knobs; a file in `config_dir` counts, too.

    Only a composition, which takes much longer, reads a file of a user, and any key of a run.
    """
    if overrides or method_files(config_dir)[name].parent != conf_directory() / "compressor":
        config = resolve(compose_overrides([f"compressor={name}", *overrides], config_dir))
        node, keys = config.compressor, config.method.as_dict()
    else:
        keys = read_method(name)
        node = keys["compressor"]
    return node, sort_keys(keys.keys() - NO_KNOBS)


def method_node(target: str, settings: Sequence[str]) -> Config:
    """Return a node with this `_target_` and its arguments, which are typed as key=value."""
    node = OmegaConf.to_container(OmegaConf.from_dotlist(list(settings)))
    assert isinstance(node, dict)
    return {"_target_": target, **{str(k): v for k, v in node.items()}}


def register() -> None:
    """Register schemas and resolvers with Hydra; safe to call twice."""
    # Hydra 1.3 also validates these files by the plugin's schemas of the same names, and warns five
    # times that this is deprecated.
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/submitit_")
    _store_schemas()
    resolvers: dict[str, Callable[..., str | int]] = {
        "levels": levels_of_bits,
        "sweep_subdirectory": lambda *, _root_: sweep_subdirectory(_root_),
        "bench_name": lambda *, _root_: bench_name(_root_),
        "run_directory": lambda *, _root_: run_directory(_root_),
    }
    for name, resolver in resolvers.items():
        register_resolver(f"gcbench.{name}", resolver)


@cache
def _store_schemas() -> None:
    for name, keys in {"run_keys": RunSettings(), "bench_keys": BenchSettings()}.items():
        store(name=name, node=keys.model_dump())
    for group, schema in SCHEMAS.items():
        if group not in WITH_KEYS_BY_CHOICE:
            store(group=group, name="schema", node=schema().model_dump())


def resolve_overrides(overrides: Sequence[str]) -> tuple[RunConfig, str]:
    """Return the checked configuration of a command line, and the directory of its run.

    Raises ConfigError in place of all errors of Hydra and OmegaConf.
    """
    try:
        composed = compose_overrides(overrides)
        return resolve(composed), run_directory(composed)
    except COMPOSITION_ERRORS as error:
        raise ConfigError(sentence_of(error, overrides=overrides)) from error
