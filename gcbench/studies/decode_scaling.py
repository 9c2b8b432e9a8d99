"""What decoding and traffic cost one worker of many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from gcbench.bench.inputs import drawn
from gcbench.check.steps import offsets
from gcbench.comm import Comm
from gcbench.compressors import Compressor, Grads, State, Step
from gcbench.launch.memory import keep_freed_memory
from gcbench.records.clock import WARMUP_STEPS, Clock
from gcbench.studies.echo import Echo
from gcbench.studies.models import shapes_of
from gcbench.studies.study import Row, Study, compressor

METHODS = {
    "signum": ("compressor=signum",),
    "qsgd": ("compressor=qsgd", "bits=4", "min_size=0"),
    "qsgd_sum": ("compressor=qsgd", "bits=4", "min_size=0", "exchange=sum"),
    "powersgd": ("compressor=powersgd", "rank=2"),
}


@dataclass
class Worker:
    """Step after step of one of `workers` workers."""

    workers: int
    compressor: Compressor
    grads: Grads
    steps: int = 0
    state: State = field(default_factory=State)
    clock: Clock = field(default_factory=lambda: Clock(torch.device("cpu")))

    def __post_init__(self) -> None:
        self.comm = Comm(self.workers, Echo(self.workers), self.clock)

    def step(self) -> None:
        step = Step(
            self.steps, 1, range(1), offsets({k: tuple(g.shape[1:]) for k, g in self.grads.items()})
        )
        self.clock.lap("compress")
        self.state = self.compressor.aggregate(self.grads, self.state, self.comm, step).state
        self.clock.end_step()
        self.steps += 1

    @property
    def received_bits(self) -> int:
        """In a step."""
        return self.comm.meter.received_bits[0] // self.steps

    def milliseconds(self) -> dict[str, float]:
        """Medians by phase."""
        by_phase: dict[str, list[float]] = defaultdict(list)
        for laps in self.clock.take():
            for phase in ("encode", "decode"):
                by_phase[phase].append(sum(lap.seconds for lap in laps if lap.name == phase))
        return {phase: 1e3 * median(found) for phase, found in by_phase.items()}


@dataclass(frozen=True, kw_only=True)
class DecodeScaling(Study):
    """Decoding time and received payload of one worker of W: Vogels et al. (PowerSGD), 2019, section 5.2 and table 5.

    signum and 4-bit qsgd gather everybody's codes, powersgd (rank 2) and qsgd with exchange=sum are added on the way. Of normal
    gradients in the shapes of `model`, all methods and W in turn in every round, medians over the rounds, in one process that
    gets its own message back from all: the computation of a real worker, without a network's time. Decoding is all that
    follows the last collective. Eager codecs; about two minutes.
    """

    workers: Sequence[int] = (2, 4, 8, 16)
    methods: Sequence[str] = tuple(METHODS)
    model: str = "resnet18"
    rounds: int = 7
    threads: int = 1

    def rows(self) -> Iterator[Row]:
        torch.set_num_threads(self.threads)
        keep_freed_memory()
        shapes = shapes_of([f"model={self.model}"], image=(3, 32, 32), outputs=10)
        grads = drawn("normal", shapes, torch.device("cpu")).grads
        made = {
            (name, w): Worker(w, compressor(*METHODS[name]), grads)
            for name in self.methods
            for w in self.workers
        }
        for _ in range(WARMUP_STEPS + self.rounds):
            for worker in made.values():
                worker.step()
        times = {key: worker.milliseconds() for key, worker in made.items()}
        for (name, w), worker in made.items():
            first = name, self.workers[0]
            yield {
                "row": f"{name}, W={w}",
                "method": name,
                "workers": w,
                "encode_milliseconds": times[name, w]["encode"],
                "decode_milliseconds": times[name, w]["decode"],
                "received_bits": worker.received_bits,
                "decode_over_first": times[name, w]["decode"] / times[first]["decode"],
                "received_over_first": worker.received_bits / made[first].received_bits,
            }
