"""Predicted throughput on clusters of hundreds of GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gcbench.core.comm.meter import Message
from gcbench.core.errors import ConfigError
from gcbench.papers.studies.study import Row, Study
from gcbench.papers.tables.configs import compose
from gcbench.papers.tables.tables import TableRow, read_table
from gcbench.runner.data_facts import facts_of
from gcbench.runner.differences import CHOICE_GROUPS
from gcbench.runner.launch.instantiate import make_compressor
from gcbench.runner.predict.devices import read_device, read_link
from gcbench.runner.predict.model import Cluster, Method, predict
from gcbench.runner.predict.subject import make_method, shapes_of_model
from gcbench.runner.settings.config import RunConfig

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
    gcbench/runner/network.py. The V100's seconds are derived; the P40's are from ECQ-SGD's own
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
