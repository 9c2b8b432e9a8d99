"""The keys of conf/optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from gcbench.knobs import Knob


class OptimizerKind(Enum):
    sgd = "sgd"
    powersgd = "powersgd"
    adam = "adam"
    adamw = "adamw"
    frozen_adam = "frozen_adam"
    dion = "dion"


LrScale = Annotated[
    float,
    Knob("multiple of the learning rate, of a group", unit="a factor", at_least=0, example=2),
]


@dataclass
class OptimizerSettings:
    """All keys of conf/optimizer; each file has the subset that its optimizer takes."""

    kind: Annotated[
        OptimizerKind,
        Knob(
            "torch.optim.SGD, Adam or AdamW, PowerSGD's (momentum after aggregation, "
            "x <- x - lr (d + m)), or that of 1-bit Adam or of Dion"
        ),
    ]
    lr: Annotated[
        float,
        Knob(
            "learning rate before the schedule; of a single worker with schedule.scale_by_workers",
            unit="a rate",
            above=0,
            example=0.05,
        ),
    ]
    momentum: Annotated[
        float,
        Knob(
            "weight of the old momentum in the new; 0: none",
            unit="a weight",
            at_least=0,
            below=1,
            example=0.9,
        ),
    ]
    nesterov: Annotated[bool, Knob("true: the step looks ahead, as in torch.optim.SGD")]
    betas: Annotated[
        list[float],
        Knob(
            "decay rates of the running averages of the aggregated gradient and of its square",
            unit="two weights",
            length=2,
            at_least=0,
            below=1,
            example=[0.9, 0.999],
        ),
    ]
    eps: Annotated[
        float,
        Knob(
            "added to the root of the second moment", unit="a small number", above=0, example=1e-8
        ),
    ]
    weight_decay: Annotated[
        float,
        Knob(
            "share of a weight that is added to its gradient after aggregation (adamw, "
            "frozen_adam and dion: times lr, taken off the weight); none on batch normalization",
            unit="a weight",
            at_least=0,
            example=0.0001,
        ),
    ]
    freeze_steps: Annotated[
        int,
        Knob(
            "steps after which the variance is frozen; with onebit_adam, gradients are sent "
            "uncompressed in these steps",
            unit="a number of steps",
            at_least=1,
            example=100,
        ),
    ]
    updates_per_interval: Annotated[
        int | None,
        Knob(
            "updates of the variance after which the steps from one to the next double; null: it "
            "moves in every step until it stands still",
            unit="a number of updates",
            at_least=1,
            example=16,
            source="0/1 Adam, section 5",
        ),
    ]
    bias_correction: Annotated[
        bool,
        Knob(
            "frozen_adam: true: moments are divided by 1 - beta^t, as in Adam; 1-bit Adam and 0/1 "
            "Adam have none",
            source="1-bit Adam, equation 1; 0/1 Adam, algorithm 1",
        ),
    ]
    groups: Annotated[
        list[dict[str, Any]],
        Knob(
            "parameters with options of their own: `match`, a regular expression in their names, "
            "lr_scale, and any option of the optimizer; the first match counts",
            unit="groups",
            example=[{"match": "bias|norm", "weight_decay": 0}],
        ),
    ]
