"""Times on clusters: of one gradient, of decoding among many workers, and of hundreds of GPUs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.network import Message
from gcbench.core.comm.transport import MirrorTransport
from gcbench.core.compressor import Compressor, Grads
from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.core.wrappers.virtual import Stepper
from gcbench.papers.studies.study import Row, Study, compressor, model_shapes
from gcbench.papers.tables.configs import compose
from gcbench.papers.tables.tables import TableRow, read_table
from gcbench.runner.bench.local import draw_input
from gcbench.runner.labels import CHOICE_GROUPS
from gcbench.runner.launch.instantiate import make_compressor
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.predict.devices import read_device, read_link
from gcbench.runner.predict.model import Cluster, Method, predict
from gcbench.runner.predict.subject import facts_of, make_method, shapes_of_model
from gcbench.runner.records.clock import WARMUP_STEPS, Clock
from gcbench.runner.settings.config import RunConfig


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


_counted: dict[str, Method] = {}  # for rows that differ only in their workers


def config_of(row: TableRow, *overrides: str) -> RunConfig:
    """Return the row's configuration, with `overrides` after its own."""
    return compose(str(row.experiment), overrides=(*row.overrides, *overrides)).run


def method_of(row: TableRow, device: str, *overrides: str) -> Method:
    """Return the method of a row, with its codec seconds on a device."""
    config = config_of(row, *overrides)
    model, dataset, family = (config.choices[group] for group in CHOICE_GROUPS)
    node = config.model.as_dict()
    key = json.dumps([config.compressor, node, model, dataset, family, device])
    if key not in _counted:
        shapes = shapes_of_model(node, facts_of(model, dataset))
        compressor = make_compressor(config.compressor, quiet=True)
        _counted[key] = make_method("", family, compressor, shapes, read_device(device))
    return replace(_counted[key], title=row.label)


def through_servers(messages: Sequence[Message], workers: int) -> list[Message]:
    """Return the messages of parameter servers in place of collectives, with one shard per worker.

    Every worker pushes its part of each shard and pulls the sum. The performance model of ECQ-SGD
    (Yan et al., 2015) has such servers, and every GPU sends its own messages.
    """
    share = (workers - 1) / workers
    sent = []
    for m in messages:
        if m.collective == "all_reduce":
            sent.append(Message("all", "all_to_all", 2 * m.number, 2 * m.bits * share))
        elif m.collective == "all_gather":
            sent.append(Message("all", "all_to_all", m.number, m.bits * (workers - 1)))
        else:
            sent.append(m)
    return sent


def _with_servers(method: Method) -> Method:
    return replace(method, messages=lambda w: through_servers(method.messages(w), w))


class Scene(NamedTuple):
    """The hardware of a table's rows, and settings that differ from the rows' own."""

    device: str
    inside: str
    servers: bool = False
    overrides: tuple[str, ...] = ()  # are added to rows whose method compresses
    batch_size: int | None = None  # replaces the rows' own


MAXNORM = Scene("v100", "nvlink2")
SCENES = {
    "maxnorm/figure11": MAXNORM,
    "maxnorm/figure12": MAXNORM,
    "maxnorm/figure13": MAXNORM,
    "maxnorm/figure14": MAXNORM,
    "ecqsgd/figure6": Scene(
        "p40", "pcie3", servers=True, overrides=("exchange=scatter_coded",), batch_size=32
    ),
}


@dataclass(frozen=True, kw_only=True)
class ThroughputModel(Study):
    """Predicted images per second: Vineeth S (QSGDMaxNorm), 2021, figures 11 to 14, and Wu et al.
    (ECQ-SGD), 2018, figure 6.

    Payloads are counted from the methods' steps. Seconds of computation and coding are those of
    conf/devices, which says which of them are derived, and those of collectives come from
    gcbench/core/comm/network.py. The V100's seconds are derived; the P40's are from ECQ-SGD's own
    66,420 images/s, with batches of 32 images and with our codecs. In ECQ-SGD every GPU pushes to
    and pulls from shards on all GPUs, as with the parameter servers of Yan et al. (2015), with
    codes in both directions; a ring, which uses a node's link once, would leave little to
    compress. Nothing is random. Takes a minute.
    """

    tables: tuple[str, ...] = tuple(SCENES)

    def rows(self) -> Iterator[Row]:
        for name in self.tables:
            yield from rows_of(name)


def rows_of(name: str) -> Iterator[Row]:
    """Yield the rows of a table whose figure has the GPUs, the GPUs per node, and the rates.

    Raises ConfigError if it lacks one of them.
    """
    table, scene = read_table(name), SCENES[name]
    figure, device = table.figure, read_device(scene.device)
    if not (figure.gpus and figure.gpus_per_node and figure.bandwidth_gbps):
        raise ConfigError(
            f"{name}: type gpus, gpus_per_node and bandwidth_gbps below figure: in its file"
        )
    first_rate, *_ = figure.bandwidth_gbps
    full_precision: dict[float, float] = {}  # images per second of the first row, by rate
    for row in table.rows:
        config = config_of(row)
        overrides = scene.overrides if config.choices["compressor"] != "none" else ()
        method = method_of(row, scene.device, *overrides)
        if scene.servers:
            method = _with_servers(method)
        batch = scene.batch_size or config.trainer.batch_size
        compute = device.compute(config.choices["model"], batch)
        inside = read_link("inside", scene.inside)
        for rate in figure.bandwidth_gbps:
            between = read_link("network", f"{rate}gbit")
            cluster = Cluster(between, inside, figure.gpus_per_node)
            predictions = [predict(method, gpus, cluster, compute) for gpus in figure.gpus]
            speeds = [round(p.samples_per_second, 1) for p in predictions]
            last = predictions[-1]
            yield {
                "row": row.label if rate == first_rate else f"{row.label} at {rate} Gbit/s",
                "table": name,
                "images_per_second": speeds[-1],
                "speed_up": speeds[-1] / full_precision.setdefault(rate, speeds[-1]),
                "step_milliseconds": 1e3 * last.step_seconds,
                "exchange_milliseconds": 1e3 * last.exchange_seconds,
                "of_bound": last.of_bound,
                "gpus": list(figure.gpus),
                "images_per_second_by_gpus": speeds,
            }
