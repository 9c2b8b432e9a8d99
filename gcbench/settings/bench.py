"""The keys of conf/bench.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gcbench.knobs import Knob
from gcbench.settings.trainer import Device


@dataclass
class BenchSettings:
    """The keys of conf/bench.yaml."""

    sizes: Annotated[
        list[float],
        Knob(
            "values of the tensors to time on",
            unit="numbers of values",
            at_least=1,
            filled=True,
            example=[1000000, 10000000],
        ),
    ]
    draws: Annotated[
        list[Literal["normal", "laplace", "student"]],
        Knob(
            "what the values are drawn from; []: steps between processes only, of normal ones",
            example=["normal", "student"],
        ),
    ]
    recorded: Annotated[
        str | None,
        Knob("a file that trainer.record_gradients wrote, instead of draws", unit="a file"),
    ]
    rounds: Annotated[
        int,
        Knob(
            "pairs of a copy and the work; medians count", unit="a number", at_least=1, example=15
        ),
    ]
    threads: Annotated[int, Knob("threads of each process", unit="a number", at_least=1, example=1)]
    device: Annotated[Device, Knob("where to time")]
    codec_backend: Annotated[
        Literal["compiled", "eager"], Knob("codecs fused by torch.compile, or not")
    ]
    workers: Annotated[
        list[int],
        Knob(
            "processes to time a whole step between, beside a dense one, by gloo, or NCCL and one "
            "a GPU; under torchrun or scripts/netlab, between those that it started",
            unit="numbers of processes",
            at_least=1,
            example=[2, 4],
        ),
    ]
