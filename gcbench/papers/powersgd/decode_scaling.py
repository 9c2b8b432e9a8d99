"""Times of decoding by the number of workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import MirrorTransport
from gcbench.core.compressor import Compressor, Grads
from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.core.wrappers.virtual import Stepper
from gcbench.papers.studies.study import Row, Study, compressor, model_shapes
from gcbench.runner.bench.local import draw_input
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.records.clock import WARMUP_STEPS, Clock

METHODS = {
    "signum": ("signum",),
    "qsgd": ("qsgd", "bits=4", "min_size=0"),
    "qsgd_sum": ("qsgd", "bits=4", "min_size=0", "exchange=sum"),
    "powersgd": ("powersgd", "rank=2"),
}


class Worker:
    """One of `workers` workers, with the times and the traffic of its steps."""

    def __init__(self, workers: int, compressor: Compressor, grads: Grads) -> None:
        self.clock = Clock(torch.device("cpu"))
        comm = Comm(workers, MirrorTransport(0, workers), self.clock)
        self.stepper = Stepper(compressor, grads, comm)

    def step(self) -> None:
        self.clock.lap("compress")
        self.stepper.step()
        self.clock.end_step()

    @property
    def received_bits(self) -> int:
        """Return the payload that the worker receives per step."""
        return self.stepper.comm.meter.received_bits[0] // self.stepper.steps

    def milliseconds(self) -> dict[str, float]:
        """Return the milliseconds of encoding and of decoding, as medians over the steps."""
        by_phase: dict[str, list[float]] = defaultdict(list)
        for laps in self.clock.take():
            for phase in ("encode", "decode"):
                by_phase[phase].append(sum(lap.seconds for lap in laps if lap.name == phase))
        return {phase: 1e3 * median(seconds) for phase, seconds in by_phase.items()}


@dataclass(frozen=True, kw_only=True)
class DecodeScaling(Study):
    """Decoding time and received payload of one worker of W: Vogels et al. (PowerSGD), 2019,
    section 5.2 and table 5.

    signum and 4-bit qsgd gather the codes of all workers; the messages of powersgd (rank 2) and of
    qsgd with exchange=sum are summed by the collectives. Gradients are normal, in the shapes of
    `model`. Each round runs all methods and W in turn, and times are medians over the rounds. A
    single process receives its own messages in place of those of the other workers: it computes
    what a real worker does, without the time of a network. Decoding is everything after the last
    collective. Codecs are eager. Takes about two minutes.
    """

    workers: Sequence[int] = (2, 4, 8, 16)
    methods: Sequence[str] = tuple(METHODS)
    model: str = "resnet18"
    rounds: int = 7
    threads: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for a single worker, as ratios to what it receives are undefined."""
        if 1 in self.workers:
            raise ConfigError(
                f"workers={format_value(self.workers)}: one worker receives nothing; type numbers "
                "of 2 or more"
            )

    def rows(self) -> Iterator[Row]:
        torch.set_num_threads(self.threads)
        keep_freed_memory()
        shapes = model_shapes(f"model={self.model}")
        grads = draw_input("normal", shapes, torch.device("cpu")).grads
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
