"""Times of one gradient on a link."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gcbench.papers.studies.study import Row, Study, model_shapes


class Model(NamedTuple):
    overrides: tuple[str, ...]  # choose the model, as typed
    printed: float  # millions of parameters, in the paper


MODELS = {
    "AlexNet": Model(("model=alexnet",), 61.1),
    "VGG-19": Model(("model=vgg19",), 143.7),
    "DenseNet-161": Model(("model=densenet161",), 28.7),
    "GoogLeNet": Model(("model=googlenet_imagenet", "model.auxiliary=true"), 13.0),
    "ResNet-50": Model(("model=resnet50_imagenet",), 25.6),
}


@dataclass(frozen=True, kw_only=True)
class CommunicationTimes(Study):
    """Time of one fp32 gradient on a link: Xu et al. (ORQ), 2020, table 1.

    It is 32 bits per parameter over the link's rate, for the parameters (in millions) of our models
    and for those that the paper prints. Latency and protocol are left out, as in the paper. Nothing
    is random. Takes some seconds.
    """

    gigabits_per_second: float = 10.0

    def rows(self) -> Iterator[Row]:
        for title, model in MODELS.items():
            shapes = model_shapes(*model.overrides)
            parameters = sum(map(math.prod, shapes.values())) / 1e6
            yield {
                "row": title,
                "parameters": parameters,
                "communication_milliseconds": self._milliseconds(parameters),
                "printed_parameters": model.printed,
                "milliseconds_of_printed_parameters": self._milliseconds(model.printed),
            }

    def _milliseconds(self, millions: float) -> float:
        return millions * 32 / self.gigabits_per_second
