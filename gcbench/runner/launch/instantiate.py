"""Objects made from `_target_` nodes, with error messages that name the key at fault."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from torch import nn

from gcbench.core.compressor import Compressor
from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError, in_one_line, near
from gcbench.core.fields import checks_itself, format_value, hints_of, refusal
from gcbench.core.method_keys import MethodSettings
from gcbench.core.parameters import shapes_of_parameters
from gcbench.runner.config.hydra_versions import trusting
from gcbench.runner.data import Data, as_data
from gcbench.runner.settings.config import PARTS, RunConfig
from gcbench.runner.settings.groups import is_ours

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def make(node: Config, key: str, *arguments: Any) -> Any:
    """Return the object that `node` describes; `key` is its place in the configuration.

    `arguments` are passed first and are not keys of the node. Raises ConfigError for a key or a
    value that the target does not take.
    """
    targets = list(_targets_in(node))
    for target in targets:
        look_here_for(target)
    _check(node, key, len(arguments))
    typed = f"{key}._target_={node['_target_']}"
    try:
        # Hydra would ask whether the class of what a user's function returns is trusted, too.
        with trusting([*targets, "gcbench.*", "torch.*", "torchvision.*"]):
            made = instantiate(node, *arguments, _convert_="all", _partial_=True)
        return made.func(*made.args, **made.keywords)
    except Exception as raised:
        by_hydra = isinstance(raised, InstantiationException)
        error = raised.__cause__ if by_hydra else raised
        if error is None:
            raise ConfigError(
                f"{typed}: Hydra makes nothing of this, as it can run any code; type a class or "
                "function of your own"
            ) from raised
        if isinstance(error, ValueError):
            raise ConfigError(_name_key(str(error), key)) from error
        if not is_ours(node["_target_"]):
            raise ConfigError(user_code_error(typed, error)) from error
        raise error from None


def make_compressor(node: Config, quiet: bool = False) -> Compressor:
    """Return the compressor of a node; `quiet` drops warnings that were shown elsewhere."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        return make(node, "compressor")


def user_code_error(what: str, error: BaseException) -> str:
    """Return the error message for an exception that a user's code has raised."""
    return (
        f"{what} raises {in_one_line(error)}; type HYDRA_FULL_ERROR=1 before the command to see "
        "where"
    )


def make_data(config: RunConfig) -> Data:
    return as_data(make(config.dataset.as_dict(), "dataset"), config.choices["dataset"])


def make_model(node: Config, shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a model for samples of `shape`, with `outputs` outputs.

    Both fill arguments that the node, or the signature of a user's own model, leaves open (null).
    Raises ConfigError if the result is not a Module.
    """
    facts = {"shape": list(shape), "outputs": outputs, "vocabulary": outputs}
    settled = fill_open(node, "model", facts)
    settled.pop("reads", None)  # the kind of data, used only by the checks of a run
    model = make(settled, "model")
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_={node['_target_']} makes a {type(model).__name__}, which is not a "
            "torch.nn.Module; type the name of a class that is one, or of a function that returns "
            "one"
        )
    return model


def parameter_shapes(
    node: Config, shape: Sequence[int], outputs: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's trained parameters by name, as compressors get them.

    Weights are not allocated.
    """
    with torch.device("meta"):
        return shapes_of_parameters(make_model(node, shape, outputs))


def fill_open(node: Config, key: str, facts: Config) -> Config:
    """Return a node in which `facts` fill the arguments that it or its target leaves open."""
    parameters = inspect.signature(_target(node, key)).parameters
    left_open = {
        k: None for k, p in parameters.items() if k in facts and p.default in (p.empty, None)
    }
    return {
        k: facts[k] if v is None and k in facts else v for k, v in {**left_open, **node}.items()
    }


def import_targets(node: Any) -> None:
    """Import what the targets of a node, and of nodes inside it, name; `make` reports failures."""
    if isinstance(node, dict):
        if "_target_" in node:
            with suppress(ConfigError):
                _target(node, "")
        node = list(node.values())
    if isinstance(node, list):
        for inside in node:
            import_targets(inside)


def _name_key(text: str, key: str) -> str:
    return text if key in text or "=" in text.split(" ")[0] else f"{key}: {text}"


def _check(node: Config, key: str, arguments: int = 0) -> None:
    """Refuse keys of a node, and of nodes inside it, that are unknown, missing or out of range.

    The first `arguments` parameters of the target are passed separately.
    """
    target = _target(node, key)
    parameters = dict([*inspect.signature(target).parameters.items()][arguments:])
    hints = _hints(target)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    part = PARTS.get(key.partition(".")[0])
    resolved = part.model_fields.keys() if part and is_ours(node["_target_"]) else ()
    for name, value in node.items():
        if name.startswith("_"):
            continue
        if name not in parameters and not takes_any:
            has = ", ".join(parameters) or "none"
            raise ConfigError(
                f"{key}.{name}={format_value(value)}: {node['_target_']} has no such argument; "
                f"it has {has}"
            )
        if isinstance(value, dict) and "_target_" in value:
            _check(value, f"{key}.{name}")
            continue
        is_key = key.startswith("compressor") and name in MethodSettings.model_fields
        if name in resolved or (is_key and checks_itself(target)):
            continue  # checked when the configuration was resolved, or by the class
        label = name if is_key else f"{key}.{name}"
        if sentence := refusal(label, value, hints.get(name, Any)):
            raise ConfigError(sentence)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind in NAMED and name not in node:
            raise ConfigError(f"{key}.{name}: {node['_target_']} needs it; type {key}.{name}=VALUE")


def _target(node: Config, key: str) -> Any:
    if "_target_" not in node:
        raise ConfigError(
            f"{key} has no _target_, which names what it makes; a file of a method begins with the "
            "line # @package _global_ and has compressor._target_: gcbench.build"
            if key == "compressor"
            else f"{key} has no _target_, which names what it makes; type {key}._target_=CLASS"
        )
    look_here_for(node["_target_"])
    try:
        return get_object(node["_target_"])
    except Exception as error:
        typed = f"{key}._target_={node['_target_']}"
        module, _, name = node["_target_"].rpartition(".")
        if module in sys.modules:  # the module can be imported but lacks the name
            advice = near(name, vars(sys.modules[module])) or "a name that it has"
            raise ConfigError(f"{typed}: {module} has no {name}; type {advice}") from error
        raise ConfigError(f"{typed} cannot be imported: {_root(error)}") from error


def _targets_in(node: Any) -> Iterator[str]:
    """Yield what a node, and the nodes inside it, name to be made."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        node = list(node.values())
    if isinstance(node, list):
        for inside in node:
            yield from _targets_in(inside)


def look_here_for(target: str) -> None:
    """Put the working directory last on Python's path if only it has the module of `target`.

    It stays there, as that module may import what lies beside it at any time. Before a target of
    the user's own needs it, it is not on the path: there may be others' files in it, and Hydra and
    torch import modules only because they find them.
    """
    here, (module, *_) = os.getcwd(), target.split(".")
    if not module or here in sys.path or module in sys.modules or find_spec(module):
        return
    if PathFinder.find_spec(module, [here]):
        sys.path.append(here)


def _root(error: BaseException) -> BaseException:
    return _root(error.__cause__) if error.__cause__ else error


def _hints(target: Any) -> Mapping[str, Any]:
    """Return the annotations of a target; none if those of a user's code cannot be resolved."""
    try:
        return hints_of(target)
    except (NameError, TypeError, AttributeError):
        return {}
