"""A method by itself: the keys of its file, checked, and the compressor that they fill."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from importlib import import_module
from numbers import Integral, Number, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import Field

from gcbench.core.conf import Config, choices_in, included_in, method_files, read_yaml
from gcbench.core.errors import ConfigError, IdleKeyError, as_known, near
from gcbench.core.fields import (
    Bits,
    Needs,
    example,
    format_value,
    hints_of,
    marks_in,
    refusal,
    to_floats,
)
from gcbench.core.method_keys import OF_LAYERS, MethodSettings

if TYPE_CHECKING:
    from gcbench.core.compressor import Compressor

BUILD = "gcbench.build"
FACTS = {"form", "recommended"}  # what a method's file says of it, and nothing computes with
NO_KNOBS = {"compressor", "_target_", *FACTS}
NEEDS = {
    name: mark
    for name, hint in hints_of(MethodSettings).items()
    for mark in marks_in(hint)
    if isinstance(mark, Needs)
}


class LevelKeys:
    """Keys of files that set `levels`, and that no compressor takes."""

    bits: Annotated[Bits, example(4)]
    """bits of a code, sign included; 1 only for eden"""
    convolution_bits: Annotated[int, Field(ge=2, le=8), example(4)]
    """bits of a code of a convolution; `bits` is that of other layers"""


SET_LEVELS = tuple(LevelKeys.__annotations__)
# What files of methods read: levels that follow from bits, and what the optimizer of a run has.
LEVELS = re.compile(r"\$\{gcbench\.levels:\$\{(\w+)\}\}")
OF_OPTIMIZER = re.compile(r"\$\{oc\.select:optimizer\.[\w.]+,(.+)\}")
NONE: Mapping[str, Any] = {}


def read_method(choice: str, knobs: Mapping[str, Any] = NONE) -> Config:
    """Return the checked keys of a method of conf/, and `compressor`, the node that they fill.

    They are those of a run with compressor=CHOICE and these knobs; knobs may also be what the file
    reads from an optimizer. Raises ConfigError for a mistake.
    """
    config = read_file(_file_of(choice))
    of_optimizer = keys_of_optimizer(choice)
    own = config.keys() - NO_KNOBS
    for key, value in knobs.items():
        if key in of_optimizer:
            config["compressor"][key] = to_plain(key, value)
        elif key in own:
            config[key] = to_plain(key, value)
        else:
            known = ", ".join([*sort_keys(own), *of_optimizer])
            raise ConfigError(f"{key}: compressor={choice} has no such knob; it has {known}")
    if (bits := bits_of(config, knobs.keys())) is not None:
        config["bits"] = bits
    config = _without_references(config, config)
    fill_compressor(config)
    to_floats_of_method(config)
    for name, hint in hints_of(MethodSettings).items():
        if name in config and (sentence := refusal(name, config[name], hint)):
            raise ConfigError(sentence)
    refuse_idle_keys(config, knobs.keys())
    return config


def keys_of_optimizer(choice: str) -> list[str]:
    """Return the arguments for which the file of a method reads the values of an optimizer."""
    own = read_yaml(_file_of(choice)).get("compressor", {})
    return [key for key, value in own.items() if "${oc.select:optimizer." in str(value)]


def _file_of(choice: str) -> Path:
    known = choices_in("compressor")
    if (name := as_known(choice, known)) not in known:
        advice = near(choice, known) or ", ".join(known)
        raise ConfigError(f"compressor={choice}: there is no such method; type {advice}")
    return method_files()[name]


def read_file(path: Path) -> Config:
    """Return a file of a method, merged into those in its list of defaults."""
    node = dict(read_yaml(path))
    merged: Config = {}
    for entry in node.pop("defaults", []):
        if entry != "_self_":
            merge(merged, read_file(included_in(path, entry.partition("@")[0])))
    merge(merged, node)
    return merged


def merge(tree: Config, layer: Mapping[str, Any]) -> None:
    """Merge a layer into a tree in place: keys of nodes, and whole lists."""
    for key, value in layer.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = deepcopy(value)


def _without_references(value: Any, config: Config) -> Any:
    """Return a value with the levels of `bits`, and with defaults for what an optimizer has."""
    if isinstance(value, dict):
        return {key: _without_references(inside, config) for key, inside in value.items()}
    if isinstance(value, str) and (found := LEVELS.fullmatch(value)):
        return levels_of_bits(config[found[1]])
    while isinstance(value, str) and (found := OF_OPTIMIZER.fullmatch(value)):
        value = found[1] if found[1].startswith("$") else yaml.safe_load(found[1])
    return value


def bits_of(config: Mapping[str, Any], typed: Collection[str]) -> int | None:
    """Return the number of bits that the typed `levels` need; None if there are no such levels.

    Raises ConfigError for one bit, unless the method takes bits itself: a sign needs a level.
    """
    bits, levels = config.get("bits"), config.get("levels")
    if type(bits) is int and bits == 1 and "bits" not in config["compressor"]["method"]:
        raise ConfigError(str(refusal("bits", bits, Annotated[int, Field(ge=2, le=8), example(4)])))
    if not isinstance(levels, int):
        return None
    needed = (2 * levels).bit_length()
    if not 2 <= needed <= 8:
        return None  # the levels are refused later, not `bits`, which were not typed
    if "bits" in typed and bits != needed:
        raise ConfigError(
            f"levels={levels} needs {needed} bits per code, not bits={bits}; "
            "type only one of bits and levels"
        )
    return needed


def fill_compressor(config: Config) -> None:
    """Give `config["compressor"]` the values of the method's keys as arguments, in place.

    An argument that the file of the method lists with null gets the value there, also in nodes
    inside. Methods that are not gcbench's get only those. Raises ConfigError for an argument that
    has another value than its key, which is what reports show.
    """
    node = config.get("compressor")
    if not isinstance(node, dict) or node.get("_target_") != BUILD or "method" not in node:
        return
    for key in (key for key in MethodSettings.model_fields if key in config):
        places = list(_nodes_with(key, node, "compressor"))
        for path, place in places:
            if place[key] not in (None, config[key]):
                typed = f"{key}={format_value(place[key])}"
                raise ConfigError(f"{path}.{typed}: type {typed}")
            place[key] = config[key]
        if not places and key not in SET_LEVELS:
            taker = node if key in OF_LAYERS else node["method"]
            if str(taker.get("_target_")).startswith("gcbench."):
                taker[key] = config[key]


def _nodes_with(key: str, node: Config, path: str) -> Iterator[tuple[str, Config]]:
    if key in node:
        yield path, node
    for name, inside in node.items():
        if isinstance(inside, dict):
            yield from _nodes_with(key, inside, f"{path}.{name}")


def to_floats_of_method(config: Config) -> None:
    """Make whole numbers of a method's float keys floats, also in its compressor, in place."""
    node: Any = config
    for inside in ("compressor", "method", ""):
        if isinstance(node, dict):
            to_floats(node, MethodSettings)
            node = node.get(inside)


def make_compressor(node: Config, quiet: bool = False) -> Compressor:
    """Return the compressor of a node; `quiet` drops warnings that were shown elsewhere."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        try:
            made: Compressor = _make(node)
        except ValueError as error:
            text = str(error)
            known = "compressor" in text or "=" in text.split(" ")[0]
            raise ConfigError(text if known else f"compressor: {text}") from error
        return made


def _make(node: Any) -> Any:
    """Return what a node describes: a call of its `_target_`, or a plain value."""
    if not isinstance(node, dict) or "_target_" not in node:
        return node
    module, _, name = node["_target_"].rpartition(".")
    target = getattr(import_module(module), name)
    return target(**{key: _make(value) for key, value in node.items() if key != "_target_"})


def to_plain(name: str, value: Any) -> Any:
    """Return a value of Python, NumPy or PyTorch as YAML has it; refuse what no key can have."""
    if getattr(value, "ndim", None) == 0:  # a number of NumPy or PyTorch
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [to_plain(name, entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str, dict)):
        return value
    if isinstance(value, Number) and isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise ConfigError(
        f"{name}: a {type(value).__name__} is no value of a key; type a number, a text, True, "
        "False or None, or a list of them"
    )


def levels_of_bits(bits: Any) -> int:
    """Return the levels above zero of `bits` with a sign, for ${gcbench.levels:...} in files."""
    if isinstance(bits, int) and 1 <= bits <= 8:
        return int(2 ** (bits - 1) - 1)
    return 7  # arbitrary, as these `bits` are refused later


def sort_keys(keys: Collection[str]) -> list[str]:
    """Return keys of methods in the order of their model, followed by those that it lacks."""
    known = list(MethodSettings.model_fields)
    return sorted(keys, key=lambda key: known.index(key) if key in known else len(known))


def refuse_idle_keys(
    flat: Mapping[str, Any], typed: Collection[str], all_needs: Mapping[str, Needs] = NEEDS
) -> None:
    """Raise IdleKeyError for a typed key that nothing reads: a sweep of it would repeat one run.

    `flat` has the values of a run, or of a method, by key as it is typed.
    """
    for name in sorted(typed):
        if name.partition(".")[0] in FACTS:
            raise IdleKeyError(
                f"{name}: a method's file says this of it, and nothing is computed with it; leave "
                "it out"
            )
    for key, needs in all_needs.items():
        if key in typed and needs.key in flat and not needs.met_by(flat[needs.key]):
            raise IdleKeyError(
                f"{_typed(key, flat[key])} has no effect with {_typed(needs.key, flat[needs.key])};"
                f" type {_typed(needs.key, needs.values[0])} too, or leave it out"
            )


def _typed(key: str, value: Any) -> str:
    """Return `key=value`; the `kind` of a group is typed as its choice."""
    return f"{key.removesuffix('.kind')}={format_value(value)}"
