"""Throughput on clusters as two papers predict it, from what they print of their devices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from gcbench.config import Config
from gcbench.predict.links import link
from gcbench.predict.model import Cluster, Method, Sent, predict
from gcbench.predict.payload import Message
from gcbench.predict.profiles import profile
from gcbench.predict.subject import compressor_of, facts_of, method, shapes_of_model
from gcbench.report.configs import composed
from gcbench.report.tables import TableRow, read_table

Row = dict[str, Any]
GROUPS = ("model", "dataset", "compressor")


def through_servers(messages: Sequence[Sent], workers: int) -> list[Message]:
    """As parameter servers exchange it, a shard on every worker: all push their part of each shard, and pull its sum.

    The model of ECQ-SGD (Yan et al., 2015) has such servers, and every GPU sends for itself.
    """
    share = (workers - 1) / workers
    found: list[Message] = []
    for m in messages:
        if m.collective == "all_reduce":
            found.append(Message("all", "all_to_all", 2 * m.number, 2 * m.bits * share))
        elif m.collective == "all_gather":
            found.append(Message("all", "all_to_all", m.number, m.bits * (workers - 1)))
        else:
            found.append(Message(*m))  # type: ignore[misc]
    return found


class Scene(NamedTuple):
    """Where a table's rows take place."""

    profile: str
    inside: str
    ethernet: bool = True  # of the rate that the table's figure has
    servers: bool = False
    words: tuple[str, ...] = ()  # beside the rows' own, for methods that scatter
    batch_size: int | None = None  # in place of the rows' own


SCENES = {
    **{f"maxnorm/figure{n}": Scene("v100", "nvlink2") for n in (11, 12, 13, 14)},
    "ecqsgd/figure6": Scene(
        "p40", "pcie3", servers=True, words=("exchange=scatter_coded",), batch_size=32
    ),
}


def config_of(row: TableRow, *words: str) -> Config:
    """Return the row's configuration, with `words` typed after its own."""
    return composed(str(row.experiment), words=(*row.words, *words)).config


def method_of(row: TableRow, device: str, *words: str, servers: bool = False) -> Method:
    config = config_of(row, *words)
    choices = config["choices"]
    made = _counted(
        json.dumps(config["compressor"]),
        json.dumps(config["model"]),
        *map(choices.get, GROUPS),
        device,
    )
    made = replace(made, title=row.label)
    return (
        replace(made, messages=lambda w: through_servers(made.messages(w), w)) if servers else made
    )


@cache
def _counted(
    compressor: str, node: str, model: str, dataset: str, family: str, device: str
) -> Method:
    """Rows that differ in the number of workers only are counted once."""
    shapes = shapes_of_model(json.loads(node), facts_of(model, dataset))
    return method(
        "", family, compressor_of({"compressor": json.loads(compressor)}), shapes, profile(device)
    )


def study_rows(name: str) -> Iterator[Row]:
    """Of a table whose figure says GPUs, those of a node, and the rate between nodes."""
    table, scene = read_table(name), SCENES[name]
    figure = table.figure or {}
    rates = [figure["bandwidth_gbps"], *figure.get("also_gbps", [])]
    full_precision: dict[float, float] = {}  # images a second of the table's first row, by rate
    for row in table.rows:
        config = config_of(row)
        words = scene.words if config["choices"]["compressor"] != "none" else ()
        made = method_of(row, scene.profile, *words, servers=scene.servers)
        batch = scene.batch_size or config["trainer"]["batch_size"]
        compute = profile(scene.profile).compute(config["choices"]["model"], batch)
        for rate in rates:
            cluster = Cluster(
                link("network", f"{rate}gbit"),
                link("inside", scene.inside),
                figure["gpus_per_node"],
            )
            found = [predict(made, gpus, cluster, compute) for gpus in figure["gpus"]]
            speeds = [round(p.images_per_second, 1) for p in found]
            yield {
                "row": row.label if rate == rates[0] else f"{row.label} at {rate} Gbit/s",
                "table": name,
                "images_per_second": speeds[-1],
                "speed_up": speeds[-1] / full_precision.setdefault(rate, speeds[-1]),
                "step_milliseconds": 1e3 * found[-1].step_seconds,
                "exchange_milliseconds": 1e3 * found[-1].exchange_seconds,
                "of_bound": found[-1].of_bound,
                "gpus": figure["gpus"],
                "images_per_second_by_gpus": speeds,
            }
