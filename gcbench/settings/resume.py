"""The keys of conf/resume."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from gcbench.knobs import Knob
from gcbench.settings.missing import MISSING


class ResumeMode(Enum):
    auto = "auto"
    never = "never"


class ResumeWorkers(Enum):
    refuse = "refuse"
    merge = "merge"


@dataclass
class ResumeSettings:
    mode: Annotated[
        ResumeMode,
        Knob("continue from the directory's checkpoint where it has one, or start anew"),
    ] = MISSING
    workers: Annotated[
        ResumeWorkers,
        Knob(
            "if the number of workers has changed: refuse, or give each worker the mean residual "
            "of those that it replaces"
        ),
    ] = ResumeWorkers.refuse
