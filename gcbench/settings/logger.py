"""The keys of conf/logger."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from gcbench.knobs import Knob
from gcbench.settings.missing import MISSING


class LoggerKind(Enum):
    wandb = "wandb"
    tensorboard = "tensorboard"
    csv = "csv"
    none = "none"


class LogMode(Enum):
    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


@dataclass
class LoggerSettings:
    kind: Annotated[
        LoggerKind,
        Knob(
            "where metrics go besides metrics.jsonl: Weights & Biases, event files of TensorBoard, "
            "a table of comma-separated values, or nowhere; the other keys are of W&B"
        ),
    ] = MISSING
    mode: Annotated[
        LogMode,
        Knob(
            "Weights & Biases; auto: WANDB_MODE or `wandb offline`, else online where an API key "
            "is configured for the user's own host, else offline"
        ),
    ] = MISSING
    project: Annotated[
        str | None, Knob("project of W&B; null: WANDB_PROJECT, else gcbench", unit="a name")
    ] = None
    entity: Annotated[
        str | None, Knob("team or user of W&B; null: WANDB_ENTITY, else yours", unit="a name")
    ] = None
    group: Annotated[
        str | None,
        Knob("group of W&B; null: WANDB_RUN_GROUP, else the name of the run", unit="a name"),
    ] = None
    tags: Annotated[
        list[str] | None,
        Knob("tags of W&B; null: WANDB_TAGS, else the choices and what was typed", unit="names"),
    ] = None
