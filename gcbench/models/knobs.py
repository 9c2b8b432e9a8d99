"""Knobs that several models share."""

from __future__ import annotations

from typing import Annotated

from gcbench.knobs import Knob

Width = Annotated[
    int, Knob("width of each layer", unit="a number of units", at_least=1, example=128)
]
Layers = Annotated[int, Knob("number of layers", unit="a number", at_least=1, example=2)]
Dropout = Annotated[
    float, Knob("share of units that are dropped", unit="a share", at_least=0, below=1, example=0.1)
]
