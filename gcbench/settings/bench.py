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
            "distribution of the values; []: only steps between processes, on normal values",
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
            "pairs of a copy and the work; results are medians",
            unit="a number",
            at_least=1,
            example=15,
        ),
    ]
    threads: Annotated[int, Knob("threads of each process", unit="a number", at_least=1, example=1)]
    device: Annotated[Device, Knob("where to time")]
    codec_backend: Annotated[
        Literal["compiled", "eager"],
        Knob("codecs in C++ on a CPU and torch.compile on a GPU, or as they are"),
    ]
    workers: Annotated[
        list[int],
        Knob(
            "numbers of processes between which whole steps are timed, beside dense ones, by gloo, "
            "or by NCCL with one per GPU; under torchrun or scripts/netlab, those that it started",
            unit="numbers of processes",
            at_least=1,
            example=[2, 4],
        ),
    ]
