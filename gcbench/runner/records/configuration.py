"""The configuration that a record holds, of which reports read some keys by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from gcbench.runner.kept_names import with_todays_names


class Record(BaseModel):
    """The base class of all parts of a result: immutable, with strictly checked types."""

    model_config = ConfigDict(strict=True, frozen=True, protected_namespaces=())


def _check_targets(config: dict[str, Any]) -> dict[str, Any]:
    for key, target in _targets("config", config):
        if not isinstance(target, str):
            raise ValueError(f"its {key} is {target!r:.60}")
    return config


def _targets(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield all `_target_` in a configuration, with their keys."""
    for name, part in node.items() if isinstance(node, dict) else enumerate(node):
        if name == "_target_":
            yield f"{key}.{name}", part
        elif isinstance(part, dict | list):
            yield from _targets(f"{key}.{name}", part)


Configuration = Annotated[dict[str, Any], AfterValidator(_check_targets)]


def in_todays_names(data: Any) -> Any:
    """Return a record, which has the names of the day when it was kept, with those of today."""
    if not isinstance(data, Mapping) or not isinstance(config := data.get("config"), dict):
        return data
    return {**data, "config": with_todays_names(config)}


class _Optimizer(Record):
    lr: float


class _Trainer(Record):
    workers: int
    batch_size: int


class _Configuration(Record):
    seed: int
    name: str | None = None
    model: dict[str, Any]
    dataset: dict[str, Any]
    compressor: dict[str, Any]
    optimizer: _Optimizer
    trainer: _Trainer


class _Choices(Record):
    model: str
    dataset: str
    compressor: str
    budget: str


class ReadByName(Record):
    """The keys that reports read by name from the two open dictionaries of a result."""

    choices: _Choices
    config: _Configuration


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is missing or has another type."""
    problem = error.errors()[0]
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "value_error" and key == "config":
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing" or problem["input"] is None:
        return f"without {key}"
    return f"its {key} is {problem['input']!r:.60}"
