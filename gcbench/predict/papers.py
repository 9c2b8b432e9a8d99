"""The papers' tables of times, predicted from what they print of their devices, beside what they print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gcbench.comm.network import Link
from gcbench.config import ConfigError
from gcbench.console import TextTable
from gcbench.predict.clusters import SCENES, Row, config_of, method_of, study_rows
from gcbench.predict.links import link
from gcbench.predict.model import Cluster, Prediction, predict
from gcbench.predict.profiles import profile
from gcbench.report.tables import Table, TableRow, read_table


def _times(row: Row, p: Prediction) -> Row:
    communication = p.exchange_seconds + p.codec_seconds
    return {
        **row,
        "images_per_second": p.images_per_second,
        "step_milliseconds": 1e3 * p.step_seconds,
        "exchange_milliseconds": 1e3 * p.exchange_seconds,
        "share_of_communication": 100 * communication / p.step_seconds,
    }


POWERSGD_LINKS = {"NCCL": "powersgd_nccl", "GLOO": "1gbit"}
PRINTED = {
    ("SGD", 16): 312.0,
    ("Rank 2", 16): 239.0,
    ("Signum", 16): 301.0,
}  # ms with NCCL: tables 3 and 6


def powersgd_rows() -> Iterator[Row]:
    """PowerSGD's figure 3. Its slow backend is taken for 1 Gbit/s, as no number of it is printed."""
    for row in read_table("powersgd/figure3").rows:
        config = config_of(str(row.experiment))
        workers, group = config["trainer"]["gpus"], str(row.group)
        between = link("network", POWERSGD_LINKS[group])
        cluster = Cluster(between, link("inside", "pcie3"), min(2, workers))
        compute = profile("powersgd_cluster").compute("resnet18", config["trainer"]["batch_size"])
        printed = PRINTED.get((row.title.split(",")[0], workers)) if group == "NCCL" else None
        made = method_of(row, "powersgd_cluster")
        yield _times(
            {"row": row.label, "printed": printed}, predict(made, workers, cluster, compute)
        )


NETWORKS = (
    "AlexNet",
    "VGG19",
    "BN-Inception",
    "ResNet50",
    "ResNet152",
    "LSTM",
)  # of QSGD with seconds on a K80


def _qsgd(
    row: TableRow, dense: TableRow, gpus: int, between: Link
) -> tuple[Prediction, Prediction, Prediction]:
    """The dense step, and QSGD's by scatter, both ways coded, and by gather."""
    config = config_of(str(dense.experiment))
    compute = profile("k80").compute(config["choices"]["model"], config["trainer"]["batch_size"])
    scatter = ("exchange=scatter_coded", "align=false")  # shards run through the gradient
    made = [method_of(dense, "k80"), method_of(row, "k80", *scatter), method_of(row, "k80")]
    found = [predict(m, gpus, Cluster(between, between), compute) for m in made]
    return found[0], found[1], found[2]


def qsgd_rows(name: str) -> Iterator[Row]:
    """QSGD's figure 2 and table 1, without double buffering. Its implementation builds on that of 1BitSGD, which scatters."""
    table, between = read_table(name), link("network", "qsgd_k80")
    rows = {row.label: row for row in table.rows}
    for label, row in rows.items():
        dense = rows.get(_partner(label))
        network = next((n for n in NETWORKS if n in label), None)
        if dense is None or network is None:
            continue
        gpus = config_of(str(row.experiment))["trainer"]["gpus"]
        plain, scatter, gather = _qsgd(row, dense, gpus, between)
        told = {"row": dense.label, "printed": (dense.published or {}).get("share")}
        yield _times(
            {**told, "printed": told["printed"] and f"{told['printed']} % communication"}, plain
        )
        faster = {
            "faster": plain.step_seconds / scatter.step_seconds,
            "faster_by_gather": plain.step_seconds / gather.step_seconds,
        }
        yield _times(
            {"row": label, "printed": (row.published or {}).get("time"), **faster}, scatter
        )


def _partner(label: str) -> str:
    """The full-precision row of a quantised one."""
    for bits in ("QSGD 4 bits", "QSGD 8 bits"):
        if label.endswith(bits):
            return label.removesuffix(bits) + "fp32"
    return ""


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    **{name: partial(study_rows, name) for name in SCENES},
    "powersgd/figure3": powersgd_rows,
    "qsgd/figure2": partial(qsgd_rows, "qsgd/figure2"),
    "qsgd/table1": partial(qsgd_rows, "qsgd/table1"),
}


def paper_table(name: str) -> TextTable:
    if name not in TABLES:
        raise ConfigError(f"table={name}: type one of {', '.join(TABLES)}")
    table: Table = read_table(name)
    rows = list(TABLES[name]())
    published = {row.label: (row.published or {}).get("throughput") for row in table.rows}
    columns = [
        c
        for c in dict.fromkeys(k for row in rows for k in row)
        if c not in ("table", "gpus", "images_per_second_by_gpus")
    ]
    for row in rows:
        row.setdefault("printed", published.get(row["row"]))
    columns = [*(c for c in columns if c != "printed"), "printed"]
    text = [[_text(row.get(column)) for column in columns] for row in rows]
    return TextTable(
        [c.replace("_", " ") for c in columns],
        text,
        title=f"{table.title}: predicted",
        notes=[*table.notes, *NOTES.get(name, [])],
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (
        value
        if isinstance(value, str)
        else f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:.4g}"
    )


NOTES = {
    **dict.fromkeys(
        [f"maxnorm/figure{n}" for n in (11, 12, 13, 14)],
        [
            "Derived: seconds of a V100 (conf/profile/v100.yaml).",
            "Sums of codes are counted in lanes that hold them, which grow with the workers.",
        ],
    ),
    "ecqsgd/figure6": [
        "Derived: a P40's seconds, from the paper's own 66,420 images/s (conf/profile/p40.yaml). Ours: 32 images; codecs.",
        "Every GPU pushes to and pulls from shards on all GPUs, as with the parameter servers of Yan et al. (2015); ECQ-SGD in "
        "codes both ways. A ring, which passes a node's link once, would leave little to compress.",
    ],
    "powersgd/figure3": [
        "Derived: profile powersgd_cluster and link powersgd_nccl, from tables 3 and 6 and the text: SGD and Signum on 16 "
        "workers with NCCL agree by construction.",
        "Printed: milliseconds of tables 3 and 6. GLOO is taken for 1 Gbit/s: ours, as nothing is printed.",
    ],
    "qsgd/figure2": [
        "Derived: the link, from AlexNet's share of 80 % on 16 GPUs, and the LSTM's seconds, from its 71 %."
    ],
    "qsgd/table1": [
        "Derived: the link and some seconds (conf/profile/k80.yaml). ResNet110 has no published seconds on a K80.",
    ],
}
