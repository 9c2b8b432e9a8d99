"""Predictions of step times that the papers print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gcbench.comm.network import Link
from gcbench.predict.devices import read_device
from gcbench.predict.links import read_link
from gcbench.predict.model import Cluster, Prediction, predict
from gcbench.report.tables import TableRow, read_table
from gcbench.studies.study import Row, Study
from gcbench.studies.table_rows import config_of, method_of

POWERSGD = "powersgd/figure3"
POWERSGD_LINKS = {"NCCL": "powersgd_nccl", "GLOO": "1gbit"}
PRINTED_MILLISECONDS = {  # with NCCL on 16 workers: tables 3 and 6
    ("SGD", 16): 312.0,
    ("Rank 2", 16): 239.0,
    ("Signum", 16): 301.0,
}
MODELS = (  # of the QSGD paper, where seconds on a K80 are known
    "AlexNet",
    "VGG19",
    "BN-Inception",
    "ResNet50",
    "ResNet152",
    "LSTM",
)


@dataclass(frozen=True, kw_only=True)
class TimeModel(Study):
    """Predicted times against printed ones: Vogels et al. (PowerSGD), 2019, figure 3, and Alistarh
    et al. (QSGD), 2017, figure 2 and table 1.

    PowerSGD: the device powersgd_cluster and the link powersgd_nccl are derived from its tables 3
    and 6 and its text, so that SGD and Signum on 16 workers with NCCL agree by construction;
    `printed` has the milliseconds of these tables. GLOO is assumed to run at 1 Gbit/s, as no rate
    is printed.

    QSGD: the link is derived from AlexNet's share of communication of 80 % on 16 GPUs, the LSTM's
    seconds from its share of 71 %, and other seconds as conf/devices/k80.yaml says. There is no
    double buffering. The authors' implementation builds on that of 1BitSGD, which scatters, so
    `faster` is for a scatter with codes in both directions. ResNet110 is left out, as it has no
    published seconds on a K80. Nothing is random. Takes a minute.
    """

    tables: tuple[str, ...] = (POWERSGD, "qsgd/figure2", "qsgd/table1")

    def rows(self) -> Iterator[Row]:
        for name in self.tables:
            for row in _powersgd_rows() if name == POWERSGD else _qsgd_rows(name):
                yield {**row, "table": name}


def _times(prediction: Prediction) -> Row:
    communication = prediction.exchange_seconds + prediction.codec_seconds
    return {
        "images_per_second": prediction.samples_per_second,
        "step_milliseconds": 1e3 * prediction.step_seconds,
        "exchange_milliseconds": 1e3 * prediction.exchange_seconds,
        "share_of_communication": 100 * communication / prediction.step_seconds,
    }


def _powersgd_rows() -> Iterator[Row]:
    device = "powersgd_cluster"
    for row in read_table(POWERSGD).rows:
        config = config_of(row)
        workers, group = config["trainer"]["gpus"], str(row.group)
        between = read_link("network", POWERSGD_LINKS[group])
        cluster = Cluster(between, read_link("inside", "pcie3"), min(2, workers))
        compute = read_device(device).compute("resnet18", config["trainer"]["batch_size"])
        prediction = predict(method_of(row, device), workers, cluster, compute)
        method = row.title.split(",")[0]
        printed = PRINTED_MILLISECONDS.get((method, workers)) if group == "NCCL" else None
        yield {"row": row.label, **_times(prediction), "printed": printed}


def _qsgd_rows(name: str) -> Iterator[Row]:
    between = read_link("network", "qsgd_k80")
    rows = {row.label: row for row in read_table(name).rows}
    for label, row in rows.items():
        dense = rows.get(_dense_partner(label))
        if dense is None or not any(model in label for model in MODELS):
            continue
        plain, scatter, gather = _qsgd_steps(row, dense, between)
        share = (dense.published or {}).get("share")
        yield {
            "row": dense.label,
            **_times(plain),
            "printed": share and f"{share} % communication",
        }
        yield {
            "row": label,
            **_times(scatter),
            "faster": plain.step_seconds / scatter.step_seconds,
            "faster_by_gather": plain.step_seconds / gather.step_seconds,
            "printed": (row.published or {}).get("time"),
        }


def _qsgd_steps(
    row: TableRow, dense: TableRow, between: Link
) -> tuple[Prediction, Prediction, Prediction]:
    """Return the dense step, and QSGD's with a scatter of codes in both directions and a gather."""
    gpus = config_of(row)["trainer"]["gpus"]
    config = config_of(dense)
    model, batch = config["choices"]["model"], config["trainer"]["batch_size"]
    compute, cluster = read_device("k80").compute(model, batch), Cluster(between, between)
    scatter = ("exchange=scatter_coded", "align=false")  # only a gather can align
    methods = [method_of(dense, "k80"), method_of(row, "k80", *scatter), method_of(row, "k80")]
    plain, scattered, gathered = (predict(m, gpus, cluster, compute) for m in methods)
    return plain, scattered, gathered


def _dense_partner(label: str) -> str:
    """Return the label of the full-precision row beside a quantized one."""
    for bits in ("QSGD 4 bits", "QSGD 8 bits"):
        if label.endswith(bits):
            return label.removesuffix(bits) + "fp32"
    return ""
