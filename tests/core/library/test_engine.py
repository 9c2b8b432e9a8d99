"""A library's loop and a run end with the same weights and bits, also if both are stopped half way.

They have one engine (`core.library.exchange`), which gets one row from each process here.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_cases import compare_with_run
from method_cases import CHOICES
from nightly import slow_but

from gcbench.core.library.fsdp import is_carried
from gcbench.core.method_files import make_compressor, read_method
from gcbench.runner.config.keys import method_keys

LOCAL: dict[str, dict[str, Any]] = {
    "local": {"every": 3},
    "local fragments": {"every": 5, "fragments": 3},
    "local delay": {"every": 4, "fragments": 2, "pattern": "strided", "delay": 1, "mixing": 0.5},
    "local delay whole": {"every": 4, "delay": 2},
}
WAYS = ("plain", "overlap", "accumulate", "comm_hook", "shards", "nodes", *LOCAL)
PARTS = ("overlap", "local fragments", "local delay")  # in which tensors are sent apart


def possible(choice: str, way: str) -> bool:
    needed = {"momentum": 0.9, "dense_steps": 2} if choice == "onebit_adam" else {}
    config = read_method(choice, needed)
    method = make_compressor(config["compressor"])
    if way == "shards":
        return "exchange" in config and is_carried(method)
    return not (method.properties.scope == "global" and way in PARTS) and (
        choice != "onebit_adam" or "local" not in way
    )


CASES = [(choice, way) for choice in CHOICES for way in WAYS if possible(choice, way)]
FAST = [
    *(("qsgd", way) for way in WAYS),
    *(("powersgd", way) for way in ("plain", "overlap", "local delay")),
    *((choice, "plain") for choice in ("top_k", "onebit_adam", "ef21", "maxnorm")),
    ("acpsgd", "overlap"),
    ("powersgd", "nodes"),
    ("terngrad", "shards"),
]


@pytest.mark.parametrize("choice, way", slow_but(FAST, CASES))
def test_weights_and_bits_are_those_of_a_run(choice: str, way: str) -> None:
    knobs: dict[str, Any] = {"min_size": 0} if "min_size" in method_keys()[choice] else {}
    knobs |= {"momentum": 0.9, "dense_steps": 2} if choice == "onebit_adam" else {}
    if way in LOCAL:
        compare_with_run(choice, "local", knobs, LOCAL[way])
    else:
        compare_with_run(choice, way, knobs)


@pytest.mark.parametrize(
    "choice, knobs",
    [
        ("qsgd", {"min_size": 0, "bits": 2, "exchange": "sum"}),
        pytest.param("qsgd", {"min_size": 0, "exchange": "scatter"}, marks=pytest.mark.slow),
        ("qsgd", {"min_size": 0, "code": "elias_dense", "bucket_scope": "gradient"}),
        ("qsgd", {"min_size": 0, "exchange": "hierarchical", "workers_per_node": 1}),
        ("powersgd", {"rank": 1, "dense_steps": 2, "clip_norm": 0.5}),
        pytest.param("maxnorm_multiscale", {"scales": [2, 6]}, marks=pytest.mark.slow),
    ],
)
def test_knobs_mean_what_they_mean_to_a_run(choice: str, knobs: dict[str, Any]) -> None:
    compare_with_run(choice, "plain", knobs)


SPARSELOCO = {"outer_momentum": 0.0, "outer_nesterov": False, "outer_lr": 1.0}


@pytest.mark.parametrize(
    "choice, knobs, local",
    [
        ("sparseloco", {"min_size": 0}, {"every": 4, **SPARSELOCO}),
        ("powersgd", {"rank": 2, "min_size": 0}, {"every": 3, "outer_nesterov": False}),
        pytest.param(
            "acpsgd", {"dense_steps": 2, "min_size": 0}, {"every": 2}, marks=pytest.mark.slow
        ),
    ],
)
def test_local_steps_mean_what_they_mean_to_a_run(
    choice: str, knobs: dict[str, Any], local: dict[str, Any]
) -> None:
    compare_with_run(choice, "local", knobs, local)
