"""A whole configuration: the models of all groups, and the roles of what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict
from typing_extensions import Self

from gcbench.core.fields import Settings, hints_of, marks_in
from gcbench.core.keys import MethodSettings
from gcbench.core.marks import ELSEWHERE, Needs, Neutral, Role
from gcbench.runner.settings.optimizer import EstimatorSettings, OptimizerSettings, ScheduleSettings
from gcbench.runner.settings.run import (
    BenchSettings,
    DatasetSettings,
    LoggerSettings,
    NetworkSettings,
    ResumeSettings,
    RunSettings,
)
from gcbench.runner.settings.trainer import TrainerSettings

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


class Resolved(Settings):
    """Checked values; besides the fields they are the keys that the file of the method has."""

    model_config = ConfigDict(extra="allow")

    compressor: Node
    """the method that compresses what a step computes"""
    choices: Annotated[dict[str, str], ELSEWHERE]
    """the choice of each group"""
    experiment: Annotated[str | None, ELSEWHERE]
    """paper/table/row"""

    @property
    def method(self) -> Node:
        """Return the keys of the method, such as bits, and what else its file says."""
        return self.model_extra or {}


class RunConfig(RunSettings, Resolved):
    """The keys of conf/config.yaml, its groups, and what is known of a run besides."""

    model: Node
    """what is trained"""
    dataset: Node
    """what it is trained and tested on"""
    estimator: Node
    """what a step compresses"""
    optimizer: Node
    """how an update is applied"""
    schedule: Node
    """the learning rate from step to step"""
    trainer: TrainerSettings
    """workers, length, and how it is run and monitored"""
    network: Annotated[NetworkSettings | None, Neutral({})]
    """an emulated link"""
    logger: Annotated[LoggerSettings, ELSEWHERE]
    """where metrics go besides the run's own files"""
    resume: Annotated[ResumeSettings, ELSEWHERE]
    """whether a run continues from its checkpoint"""
    data: Annotated[Node, ELSEWHERE]
    """where data sets lie"""
    budget: Annotated[Node | None, ELSEWHERE]
    """what makes the experiment smaller"""
    needs: Annotated[str | None, ELSEWHERE]
    """requirements that not everybody can meet, such as ImageNet"""
    needed_files: Annotated[list[str], ELSEWHERE]
    """the required files and folders under data.root"""
    form: Annotated[str, ELSEWHERE] = "ours"
    """whose form of its method a file has: the paper's, its authors' code's, or ours"""
    knobs: Annotated[Node, ELSEWHERE]
    """what was typed that changes numbers"""

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Self:
        """Return what was checked when a run was resolved, or what a result has kept of it."""
        groups = node.keys() & {"trainer", "network", "logger", "resume"}
        typed = {group: SCHEMAS[group].of(node[group]) if node[group] else None for group in groups}
        return super().of({**node, **typed})

    def as_dict(self) -> Node:
        plain = super().as_dict()
        return {k: {} if (k, v) == ("network", None) else v for k, v in plain.items()}


class BenchConfig(BenchSettings, Resolved):
    """The keys of conf/bench.yaml, its groups, and their choices."""

    model: Node | None = None
    """a model whose list of tensors is timed instead of one matrix"""


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
