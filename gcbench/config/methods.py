"""A method by itself: the keys of its file, checked, and the compressor that they fill."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf

from gcbench.config.checks import check_node, refuse_idle_keys, to_floats
from gcbench.config.directory import choices_in, conf_directory, read_yaml
from gcbench.config.errors import Config, ConfigError, as_known, near
from gcbench.config.help import NO_KNOBS, sort_keys
from gcbench.config.hydra_versions import register_resolver
from gcbench.settings.compressor import Bits, MethodSettings
from gcbench.settings.fields import example, format_value, refusal

BUILD = "gcbench.compressors.build"
# Keys of methods that BUILD takes; its method takes all others.
OF_BUILD = (
    "adapt_every",
    *("align", "alpha", "beta", "bucket_scope", "clip_norm", "clip_sigma", "code", "dense_steps"),
    *("error_feedback", "exchange", "min_ratio", "min_size", "momentum_start", "reset_steps"),
    "rotate",
    "workers_per_node",
)
SET_LEVELS = ("bits", "convolution_bits")  # keys that no compressor takes, only `levels`
NONE: Mapping[str, Any] = {}


def read_method(choice: str, knobs: Mapping[str, Any] = NONE) -> Config:
    """Return the checked keys of a method of conf/, and `compressor`, the node that they fill.

    They are those of a run with compressor=CHOICE and these knobs; knobs may also be what the file
    reads from an optimizer. Raises ConfigError for a mistake.
    """
    places = {key: f"compressor.{key}" for key in keys_of_optimizer(choice)}
    tree = read_file(_file_of(choice))
    own = {str(key) for key in tree} - NO_KNOBS
    for key, value in knobs.items():
        if key not in {*own, *places}:
            known = ", ".join([*sort_keys(own), *places])
            raise ConfigError(f"{key}: compressor={choice} has no such knob; it has {known}")
        OmegaConf.update(tree, places.get(key, key), to_plain(key, value))
    settle_bits(tree, knobs.keys())
    config = fill(tree)
    check_node(config, MethodSettings, "")
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
    return conf_directory() / "compressor" / f"{name}.yaml"


def read_file(path: Path) -> DictConfig:
    """Return a file of a method, merged into those in its list of defaults."""
    register_resolver("gcbench.levels", levels_of_bits)
    node = read_yaml(path)
    names = [entry.partition("@")[0] for entry in node.pop("defaults", []) if entry != "_self_"]
    files = [read_file(path.parent / f"{name}.yaml") for name in names]
    merged = OmegaConf.merge(*files, node)
    assert isinstance(merged, DictConfig)
    return merged


def fill(tree: DictConfig) -> Config:
    """Return the plain values of a configuration, with a compressor that has its method's keys."""
    plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    config = {str(key): value for key, value in plain.items()}
    fill_compressor(config)
    node: Any = config
    for inside in ("compressor", "method", ""):
        if isinstance(node, dict):
            to_floats(node, MethodSettings)
            node = node.get(inside)
    return config


def settle_bits(tree: DictConfig, typed: Collection[str]) -> None:
    """Set `bits` to the number that the typed `levels` need.

    Raises ConfigError for one bit, unless the method takes bits itself: a sign needs a level.
    """
    if type(bits := tree.get("bits")) is int and bits == 1 and "bits" not in tree.compressor.method:
        raise ConfigError(str(refusal("bits", bits, Annotated[Bits, example(4)])))
    if (
        "levels" not in tree
        or OmegaConf.is_interpolation(tree, "levels")
        or not isinstance(tree.levels, int)
    ):
        return
    bits = (2 * tree.levels).bit_length()
    if not 2 <= bits <= 8:
        return  # the levels are refused later, not `bits`, which were not typed
    if "bits" in typed and tree.bits != bits:
        raise ConfigError(
            f"levels={tree.levels} needs {bits} bits per code, not bits={tree.bits}; "
            "type only one of bits and levels"
        )
    tree.bits = bits


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
            taker = node if key in OF_BUILD else node["method"]
            if str(taker.get("_target_")).startswith("gcbench."):
                taker[key] = config[key]


def _nodes_with(key: str, node: Config, path: str) -> Iterator[tuple[str, Config]]:
    if key in node:
        yield path, node
    for name, inside in node.items():
        if isinstance(inside, dict):
            yield from _nodes_with(key, inside, f"{path}.{name}")


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
