"""The keys of conf/estimator; estimators annotate their fields with these types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gcbench.knobs import Knob

EpochSteps = Annotated[
    int | None,
    Knob(
        "steps T from one full gradient to the next; null: a pass over the data",
        unit="a number of steps",
        at_least=1,
        example=100,
        source="QSGD, section 3.3",
    ),
]
Penalty = Annotated[
    float,
    Knob(
        "weight of ||x||^2 / 2 in what is minimized; takes the place of optimizer.weight_decay",
        unit="a weight",
        at_least=0,
        example=0.01,
    ),
]
Every = Annotated[
    int,
    Knob(
        "steps H that a worker takes by itself from one exchange of a parameter to the next",
        unit="a number of steps",
        at_least=1,
        example=8,
        source="Douillard et al., arXiv:2311.08105",
    ),
]
Fragments = Annotated[
    int,
    Knob(
        "parts of the model, each exchanged every H steps at an offset of its own",
        unit="a number of fragments",
        at_least=1,
        example=4,
        source="Douillard et al., arXiv:2501.18512",
    ),
]
OuterLr = Annotated[
    float,
    Knob(
        "rate of the outer optimizer, which applies the aggregated differences",
        unit="a rate",
        above=0,
        example=0.7,
    ),
]
OuterMomentum = Annotated[
    float,
    Knob(
        "weight of the outer optimizer's old momentum in the new; 0: none",
        unit="a weight",
        at_least=0,
        below=1,
        example=0.9,
    ),
]
OuterNesterov = Annotated[
    bool, Knob("true: the outer step looks ahead, as in torch.optim.SGD; needs momentum")
]
InnerClipNorm = Annotated[
    float | None,
    Knob(
        "2-norm to which a worker scales its gradient down before its own step; null: none",
        unit="a norm",
        above=0,
        example=1,
    ),
]
MaxEvery = Annotated[
    int,
    Knob(
        "most steps H from one exchange to the next, once the variance is frozen",
        unit="a number of steps",
        at_least=1,
        example=16,
        source="0/1 Adam, section 5",
    ),
]
DoubleSteps = Annotated[
    int,
    Knob(
        "steps with a frozen variance after which the steps between exchanges double",
        unit="a number of steps",
        at_least=1,
        example=1000,
        source="0/1 Adam, section 5",
    ),
]


@dataclass
class EstimatorSettings:
    """All keys of conf/estimator; each file has the subset that its estimator takes."""

    epoch_steps: EpochSteps
    penalty: Penalty
    every: Every
    fragments: Fragments
    outer_lr: OuterLr
    outer_momentum: OuterMomentum
    outer_nesterov: OuterNesterov
    clip_norm: InnerClipNorm
    max_every: MaxEvery
    double_steps: DoubleSteps
