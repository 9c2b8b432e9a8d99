"""A whole configuration: the models of all groups, and the roles of what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, model_validator
from typing_extensions import Self

from gcbench.core.fields import Needs, Neutral, Settings, hints_of, marks_in
from gcbench.core.method_keys import MethodSettings
from gcbench.runner.settings.groups import (
    ELSEWHERE,
    BenchSettings,
    DatasetSettings,
    DataSettings,
    EstimatorSettings,
    LoggerSettings,
    ModelSettings,
    NetworkSettings,
    OptimizerSettings,
    ResumeSettings,
    Role,
    RunSettings,
    ScheduleSettings,
    TrainerSettings,
)

# The models of groups with fixed keys. Those of a method are typed without their group.
SCHEMAS: dict[str, type[Settings]] = {
    "trainer": TrainerSettings,
    "optimizer": OptimizerSettings,
    "schedule": ScheduleSettings,
    "estimator": EstimatorSettings,
    "network": NetworkSettings,
    "logger": LoggerSettings,
    "resume": ResumeSettings,
}

Node = dict[str, Any]
R = TypeVar("R")


class MethodKeys(MethodSettings):
    """The keys of a method, and what else its file says."""

    model_config = ConfigDict(extra="allow")

    recommended: dict[str, Any] = {}
    """the rate that the method was published with"""


def _gathered(kind: type[Settings], node: Mapping[str, Any]) -> Node:
    """Return plain values with the keys of the method put together, and no empty network."""
    own = kind.model_fields.keys() - {"method"}
    gathered = {key: value for key, value in node.items() if key in own}
    gathered["method"] = {key: value for key, value in node.items() if key not in own}
    if "network" in gathered:
        gathered["network"] = gathered["network"] or None
    return gathered


class Resolved(Settings):
    """A whole configuration, in which the keys of its method stand beside the groups."""

    compressor: Node
    """the method that compresses what a step computes"""
    choices: Annotated[dict[str, str], ELSEWHERE]
    """the choice of each group"""
    experiment: Annotated[str | None, ELSEWHERE] = None
    """paper/table/row"""
    method: MethodKeys
    """the keys of the method, such as bits, which are typed without their group"""

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Self:
        nested = {
            key: PARTS[key].of(value) if isinstance(value, dict) and key in PARTS else value
            for key, value in _gathered(cls, node).items()
        }
        return super().of(nested)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, node: Mapping[str, Any]) -> Node:
        return _gathered(cls, node)

    def as_dict(self) -> Node:
        plain = super().as_dict()
        network = {"network": plain["network"] or {}} if "network" in plain else {}
        return {**plain.pop("method", {}), **plain, **network}


class RunConfig(RunSettings, Resolved):
    """The keys of conf/config.yaml, its groups, and what is known of a run besides."""

    model: ModelSettings
    """what is trained"""
    dataset: DatasetSettings
    """what it is trained and tested on"""
    estimator: EstimatorSettings
    """what a step compresses"""
    optimizer: OptimizerSettings
    """how an update is applied"""
    schedule: ScheduleSettings
    """the learning rate from step to step"""
    trainer: TrainerSettings
    """workers, length, and how it is run and monitored"""
    network: Annotated[NetworkSettings | None, Neutral({})]
    """an emulated link"""
    logger: Annotated[LoggerSettings, ELSEWHERE]
    """where metrics go besides the run's own files"""
    resume: Annotated[ResumeSettings, ELSEWHERE]
    """whether a run continues from its checkpoint"""
    data: Annotated[DataSettings | None, ELSEWHERE] = None
    """where data sets lie"""
    budget: Annotated[None, ELSEWHERE] = None
    """what makes the experiment smaller; applied, and gone, when a run is resolved"""
    needs: Annotated[str | None, ELSEWHERE] = None
    """requirements that not everybody can meet, such as ImageNet"""
    needed_files: Annotated[list[str], ELSEWHERE] = []
    """the required files and folders under data.root"""
    form: Annotated[str, ELSEWHERE] = "ours"
    """whose form of its method a file has: the paper's, its authors' code's, or ours"""
    knobs: Annotated[Node, ELSEWHERE]
    """what was typed that changes numbers"""
    typed: Annotated[list[str], ELSEWHERE] = []
    """all that was typed, for config.yaml; no part of what a result keeps"""

    def as_dict(self) -> Node:
        return {key: value for key, value in super().as_dict().items() if key != "typed"}


class BenchConfig(BenchSettings, Resolved):
    """The keys of conf/bench.yaml, its groups, and their choices."""

    model: ModelSettings | None = None
    """a model whose list of tensors is timed instead of one matrix"""


# The models inside of a configuration, by key.
PARTS: dict[str, type[Settings]] = {
    "method": MethodKeys,
    "model": ModelSettings,
    "dataset": DatasetSettings,
    "data": DataSettings,
    **SCHEMAS,
}

# The models of all keys, by what precedes them: a group, or of a method's keys nothing.
MODELS: dict[str, type[Settings]] = {
    "": RunConfig,
    "compressor": MethodSettings,
    "dataset": DatasetSettings,
    **SCHEMAS,
}


def _marks(model: type[Settings], kind: type[R]) -> dict[str, R]:
    """Return the marks of one kind at the keys of a model, by key."""
    marked = {
        name: next((mark for mark in marks_in(hint) if isinstance(mark, kind)), None)
        for name, hint in hints_of(model).items()
    }
    return {name: mark for name, mark in marked.items() if mark is not None}


def keys_of(group: str, role: Role) -> frozenset[str]:
    """Return the keys of a group, or of the top level (""), that have a role."""
    return frozenset(name for name, mark in _marks(MODELS[group], Role).items() if mark == role)


# Keys that kept results have and runs no longer take, with the value that changed nothing.
GONE = {"speeds": None, "absences": None, "rounds": "steps"}


def neutral_values() -> dict[str, Any]:
    """Return the value of each key that came later with which a run is as without the key."""
    marks = [_marks(model, Neutral) for model in MODELS.values()]
    return GONE | {name: mark.value for of_model in marks for name, mark in of_model.items()}


NEEDS = {
    name if group in ("", "compressor") else f"{group}.{name}": mark
    for group, model in MODELS.items()
    for name, mark in _marks(model, Needs).items()
}
"""What keys need to be read, by key as it is typed."""
