"""Predicted steps beside those that others measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gcbench.core.comm.meter import Message
from gcbench.papers.studies.study import Row, Study
from gcbench.runner.network import Link, Network, exchange_seconds

PARAMETERS, WORKERS = 30_846_720, 4
# By rate in Mbit/s and H: the link's rate by iperf3 in Mbit/s, the timed steps and the exchanges
# among them, a step's own work and the whole step in ms; medians of three runs, from results/raw
# and experiments/01_cu_grid/raw_step_telemetry_shaped at commit 07b7885.
MEASURED = {
    (50, 1): (49.614, 10, 10, 26.875, 38145.861),
    (50, 8): (49.617, 72, 9, 25.493, 4734.846),
    (50, 32): (49.616, 140, 4, 25.359, 1096.032),
    (50, 128): (49.628, 180, 1, 25.357, 226.225),
    (200, 1): (198.501, 30, 30, 26.844, 8303.375),
    (200, 8): (198.505, 140, 17, 25.463, 1033.017),
    (200, 32): (198.491, 140, 4, 25.323, 262.050),
    (200, 128): (198.487, 180, 1, 25.382, 72.822),
    (1000, 1): (992.645, 90, 90, 26.861, 1533.195),
    (1000, 8): (992.647, 140, 17, 25.532, 208.764),
    (1000, 32): (992.647, 140, 4, 25.392, 71.239),
    (1000, 128): (992.642, 180, 1, 25.396, 35.925),
    (5000, 1): (4963.615, 90, 90, 26.935, 344.031),
    (5000, 8): (4963.529, 140, 17, 25.486, 64.188),
    (5000, 32): (4963.524, 140, 4, 25.330, 37.431),
    (5000, 128): (4963.558, 180, 1, 25.379, 29.393),
}


@dataclass(frozen=True, kw_only=True)
class DilocoMeasured(Study):
    """Our predicted beside others' measured steps of DiLoCo: Adnan082/diloco-measured, 2026.

    They trained 30.8 million parameters on four L40S, joined by NCCL over TCP at four shaped rates,
    with an exchange in every H steps. The prediction takes the measured rate of the link and a
    step's own work from them, and adds an all-reduce in a ring by `gcbench predict`'s cost model.
    `naive_ratio` is against their analytic model, in which the gradient crosses the link once; a
    ring of W workers takes 2 (W - 1) / W times as long. Nothing is random or timed.
    """

    latency_microseconds: float = 50.0  # per message

    def rows(self) -> Iterator[Row]:
        bits = 32.0 * PARAMETERS
        for (rate, every), (link, steps, exchanges, own, step) in MEASURED.items():
            between = Link(1e6 * link, 1e-6 * self.latency_microseconds)
            message = Message("all", "all_reduce", 1, bits)
            exchange = 1e3 * exchange_seconds([message], Network(WORKERS, 1, between, between))
            predicted = own + exchange * exchanges / steps
            naive = own + 1e3 * bits / between.bits_per_second * exchanges / steps
            yield {
                "row": f"{rate}mbit, H = {every}",
                "own_milliseconds": own,
                "exchange_milliseconds": exchange,
                "predicted_milliseconds": predicted,
                "measured_milliseconds": step,
                "ratio": step / predicted,
                "naive_ratio": step / naive,
            }
