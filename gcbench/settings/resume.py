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
            "with another number of workers than before: refuse, or each takes the mean residual "
            "of those whose place it has"
        ),
    ] = ResumeWorkers.refuse
