"""The bits that the meter says are on the wire are those that the kernel counts.

The kernel's TCP counts what gloo hands to it. That is the collectives' wire bits and, for every
message to another process, three of gloo's headers of 48 bytes: of the send, of the receive that
waits for it, and of the data. In a gather or an all-to-all between W workers each of them sends
W - 1 messages, and in a ring that sums 2 (W - 1) of two parts each. So three workers send

    wire bits + 2,304 for a gather, 4,608 for a ragged gather, which gathers its lengths first,
    and 9,216 for an all-reduce

and less for an all-reduce of so few values that some of its 2 W parts are empty.

What TCP sends again is left out. Workers of a ring pass on parts that differ by a value, so that
bits are compared for all workers together.
"""

from __future__ import annotations

import pytest
import tcp_cases
from gloo_pool import pool
from sentence import compose

from gcbench.core.comm.meter import Collective
from gcbench.runner.config.resolve import resolve

HEADERS = 3 * 48 * 8
MESSAGES: dict[Collective, int] = {  # to each other worker
    "all_reduce": 4,
    "all_gather": 1,
    "ragged_gather": 1,
    "all_to_all": 1,
}
EXCHANGES = ("gather", "scatter", "scatter_coded", "sum")
SETTINGS = [
    *("none", "fp16", "bf16", "powersgd", "acpsgd", "unbiased_lowrank", "atomo", "dion", "dion2"),
    *("random_k", "random_block", "top_k", "top_k index=auto", "natural", "ef21", "demo", "loco"),
    *("maxnorm", "maxnorm_multiscale", "global_randk", "global_randk_multiscale", "sparseloco"),
    *("signum", "sign_norm", "scaled_sign", "scaled_sign exchange=scatter_coded", "bingrad_b"),
    "ef21_muon",
    *(f"qsgd bits={bits} exchange={exchange}" for bits in (2, 5) for exchange in EXCHANGES),
    *(f"qsgd code={code}" for code in ("elias_dense", "elias_sparse", "ans")),
    *("qsgd align=true", "qsgd bucket_scope=gradient", "qsgd_by_kind", "ecqsgd code=ans"),
    *("onebit exchange=scatter", "ecqsgd exchange=sum", "terngrad per_layer=true"),
    *(f"{name} exchange=sum" for name in ("terngrad", "qsgd_levels", "orq", "linear")),
    *("bingrad_pb exchange=sum", "orq level_count=9", "linear exchange=scatter_coded"),
]
BETWEEN_NODES = [
    f"{name} exchange=hierarchical workers_per_node=2" for name in ("qsgd", "scaled_sign", "orq")
]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "settings"), [(3, SETTINGS), (4, BETWEEN_NODES)])
def test_the_kernel_counts_what_the_meter_says(workers: int, settings: list[str]) -> None:
    assert len(SETTINGS) >= 50
    nodes = [resolve(compose(*f"compressor={typed}".split())).compressor for typed in settings]
    ranks = pool(workers).run(tcp_cases.steps_of_methods, nodes, workers)
    differences = {}
    for typed, *counted in zip(settings, *ranks, strict=True):
        expected = sum(
            total.wire_bits(kind)
            + total.messages * MESSAGES[kind.collective] * (kind.workers - 1) * HEADERS
            for of_rank in counted
            for kind, total in of_rank.totals.items()
        )
        # A part takes ceil(n / 2 W) values, and each is passed on 2 (W - 1) times.
        parts = [-(-n // -(-n // (2 * workers))) for n in counted[0].reduced]
        expected -= sum(2 * workers - part for part in parts) * 2 * (workers - 1) * HEADERS
        differences[typed] = sum(of_rank.tcp_bits for of_rank in counted) - round(expected)
    assert differences == dict.fromkeys(settings, 0)
