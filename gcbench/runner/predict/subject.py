"""The subject of a prediction: the tensors of a model, and methods with the typed knobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass
from torch.utils.flop_counter import FlopCounterMode

from gcbench.core.compressor import Compressor
from gcbench.core.conf import Config, read_yaml
from gcbench.core.errors import ConfigError
from gcbench.core.method_files import read_method
from gcbench.core.wrappers.virtual import parts_of
from gcbench.runner.conf_files import CHECKED, build_checked
from gcbench.runner.config.compose import compose_overrides, find_method
from gcbench.runner.config.keys import read_knobs
from gcbench.runner.config.resolve import resolve
from gcbench.runner.data_facts import Facts, dataset_of, facts_of, window_of
from gcbench.runner.differences import CHOICE_GROUPS
from gcbench.runner.launch.instantiate import make_compressor, make_model, parameter_shapes
from gcbench.runner.predict.devices import Device, SecondsByBatch
from gcbench.runner.predict.model import Method
from gcbench.runner.predict.payload import Payload, Shapes

EXCHANGES = ("gather", "scatter", "scatter_coded", "sum")  # between nodes of one worker


def shapes_of_model(node: Config, facts: Facts) -> Shapes:
    """Return the shapes of a model's parameters for samples of that data set."""
    return _shapes_of_model(json.dumps(node), facts)


@cache  # as a page asks for the same model for each method
def _shapes_of_model(node: str, facts: Facts) -> Shapes:
    return parameter_shapes(json.loads(node), facts.sample, facts.outputs)


def flops_of(model: str) -> int:
    """Return the operations of a forward pass of one sample; 0 if they cannot be counted."""
    facts = facts_of(model, None)
    config = resolve(compose_overrides([f"model={model}", f"dataset={dataset_of(model)}"]))
    node = config.model.as_dict()
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        text = torch.zeros(1, window_of(model), dtype=torch.long)
        inputs = torch.zeros(1, *facts.sample) if facts.sample else text
        make_model(node, facts.sample, facts.outputs).eval()(inputs)
    return counter.get_total_flops()


@dataclass(frozen=True, config=CHECKED)
class OwnModel:
    """The model in `shapes=FILE`: its tensors, and the seconds of its steps by batch size."""

    shapes: Annotated[list[list[PositiveInt]], Field(min_length=1)]
    seconds: SecondsByBatch
    title: str

    @property
    def tensors(self) -> Shapes:
        return {f"tensor {i}": tuple(shape) for i, shape in enumerate(self.shapes)}


def read_shapes(path: str) -> OwnModel:
    """Return the model in a file; raise ConfigError if there is none."""
    if not Path(path).is_file():
        raise ConfigError(
            f"shapes={path}: there is no such file; type one with the keys shapes and seconds"
        )
    node = read_yaml(Path(path))
    if not isinstance(node, dict) or not {"shapes", "seconds"} <= set(node):
        raise ConfigError(
            f"shapes={path}: a model has shapes: [[64, 3, 3, 3], ...] and seconds: {{128: 0.1}} by "
            "batch size"
        )
    return build_checked(OwnModel, {"title": Path(path).stem, **node}, f"shapes={path}")


def refuse_unknown_knobs(
    names: Sequence[str], overrides: Sequence[str], config_dir: str | None
) -> None:
    """Raise ConfigError if an override is a knob of none of the methods."""
    keys = {key for name in names for key in find_method(name, config_dir)[1]} if overrides else {}
    for override in overrides:
        if override.partition("=")[0] not in keys:
            raise ConfigError(
                f"{override}: no such key with compressor={','.join(names)}; type gcbench predict "
                "--help to see the keys, or shapes=FILE for a model of your own"
            )


def make_methods(
    name: str,
    overrides: Sequence[str],
    shapes: Shapes,
    device: Device,
    workers_per_node: int,
    config_dir: str | None = None,
) -> list[Method]:
    """Return a method for every combination of the values that were typed for its knobs.

    Overrides that are not its knobs are ignored.
    """
    _, keys = find_method(name, config_dir)
    knobs = [override for override in overrides if override.partition("=")[0] in keys]
    every = []
    for combination in product(*map(_values, knobs)):
        title = " ".join([name, *combination])
        node = (
            find_method(name, config_dir, combination)[0]
            if config_dir
            else read_method(name, read_knobs(combination))["compressor"]
        )
        compressor = make_compressor(node, True)
        every.append(make_method(title, name, compressor, shapes, device, workers_per_node))
    return every


def _values(override: str) -> list[str]:
    key, _, value = override.partition("=")
    return [override] if value.startswith("[") else [f"{key}={v}" for v in value.split(",")]


_payloads: dict[Any, Payload] = {}


def make_method(
    title: str,
    family: str,
    compressor: Compressor,
    shapes: Shapes,
    device: Device,
    workers_per_node: int = 1,
) -> Method:
    """Return a method on a model, with its counted payload and its codec seconds on the device."""
    values = sum(prod(shape) for shape in shapes.values())
    # A page asks for the same method on the same model for several pictures.
    asked = repr(compressor), (*shapes.items(),), workers_per_node
    payload = _payloads.setdefault(asked, Payload(compressor, shapes, workers_per_node))
    in_buckets = compressor.properties.scope != "global"
    codec = device.codec(family, values)
    min_size = max(getattr(part, "min_size", 0) for part in parts_of(compressor))
    too_small = any(prod(shape) < min_size for shape in shapes.values())
    return Method(title, family, payload.at, codec, 4 * values, in_buckets, too_small)


def methods_by_exchange(
    config: Config, title: str, device: Device, workers: int
) -> dict[str, Method]:
    """Return a run's method by the exchanges that it can have with so many workers, its own first.

    A method without a choice has one form, by the name "".
    """
    own = config["compressor"].get("exchange", "")
    forms = {}
    for exchange in dict.fromkeys((own, *EXCHANGES)) if own else ("",):
        try:
            method = method_of(config, title, device, {"exchange": exchange} if own else {})
            method.messages(workers)
        except ValueError:  # the method has no such exchange
            continue
        forms[exchange] = method
    return forms


def method_of(config: Config, title: str, device: Device, knobs: Mapping[str, Any]) -> Method:
    """Return a run's method, with other values of some keys of its compressor."""
    model, dataset, family = (config["choices"][group] for group in CHOICE_GROUPS)
    shapes = shapes_of_model(config["model"], facts_of(model, dataset))
    compressor = make_compressor({**config["compressor"], **knobs}, quiet=True)
    method = make_method(title, family, compressor, shapes, device)
    return replace(method, every=config["estimator"].get("every", 1))
