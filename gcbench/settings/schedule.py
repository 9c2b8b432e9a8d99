"""The keys of conf/schedule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from gcbench.knobs import Knob
from gcbench.settings.missing import MISSING


class ScheduleKind(Enum):
    constant = "constant"
    steps = "steps"
    cosine = "cosine"
    linear = "linear"


class Interval(Enum):
    step = "step"
    epoch = "epoch"


@dataclass
class ScheduleSettings:
    kind: Annotated[
        ScheduleKind,
        Knob(
            "the rate stays, falls at milestones, along half a cosine to zero, or along a line to "
            "end_factor"
        ),
    ] = MISSING
    milestones: Annotated[
        list[float] | None,
        Knob(
            "fractions of the run after which the rate is multiplied by gamma",
            unit="fractions of the run",
            above=0,
            below=1,
            example=[0.5, 0.75],
        ),
    ] = None
    gamma: Annotated[
        float,
        Knob("factor of the rate at each milestone", unit="a factor", at_least=0, example=0.1),
    ] = 0.1
    end_factor: Annotated[
        float,
        Knob(
            "share of the rate to which the line of kind=linear falls, from the end of the "
            "warm-up to that of the run",
            unit="a share of the rate",
            at_least=0,
            example=0.07,
        ),
    ] = 0.0
    warmup_epochs: Annotated[
        float,
        Knob(
            "epochs in which the rate rises linearly",
            unit="a number of epochs",
            at_least=0,
            example=5,
        ),
    ] = 0.0
    warmup_start: Annotated[
        float | None,
        Knob(
            "fraction of the full rate at step 0; null: the rate of a single worker with "
            "scale_by_workers, else about 0",
            unit="a fraction of the full rate",
            at_least=0,
            at_most=1,
            example=0.1,
        ),
    ] = None
    scale_by_workers: Annotated[bool, Knob("true: the rate times the number of workers")] = False
    interval: Annotated[
        Interval,
        Knob(
            "when the rate changes, or step() of schedule._target_ is called: after every update, "
            "or every epoch"
        ),
    ] = Interval.step
