"""The keys at the top of conf/config.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gcbench.knobs import Knob


@dataclass
class RunSettings:
    """The keys at the top of conf/config.yaml."""

    seed: Annotated[
        int,
        Knob(
            "seed of initial weights, order of samples, augmentation, dropout and rounding",
            unit="a seed",
            at_least=0,
            below=2**63,
            example=1,
        ),
    ]
    name: Annotated[
        str | None,
        Knob("name of the run's directory; null: made of the choices", unit="a name"),
    ]
    outputs: Annotated[str, Knob("folder for run directories", unit="a folder", example="outputs")]
    directory: Annotated[
        str | None,
        Knob(
            "directory of this run, or of a shorter one to extend; "
            "null: outputs/NAME+TYPED-sSEED-HASH",
            unit="a folder",
        ),
    ]
    rerun: Annotated[bool, Knob("true: run again what has a result already")]
