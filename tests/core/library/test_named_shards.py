"""gcbench.compress between nodes of FSDP2, by parameter, in four processes joined by gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo_pool import pool
from method_cases import CHOICES
from named_cases import (
    names_in_states,
    train_between_nodes,
    train_columns,
    train_in_one_process,
)

from gcbench.runner.config.keys import method_keys

FEW = ("powersgd", "acpsgd", "demo", "qsgd", "onebit_adam")
KNOBS: dict[str, dict[str, Any]] = {
    "onebit_adam": {"momentum": 0.9, "dense_steps": 1},
    "powersgd": {"rank": 2, "min_ratio": 0},
    "top_k": {"fraction": 0.1, "min_size": 0},
}


@pytest.mark.capability
@pytest.mark.parametrize(
    "names",
    [pytest.param(FEW, id="few"), pytest.param(CHOICES, id="all", marks=pytest.mark.slow)],
)
def test_a_method_sees_the_rows_of_each_matrix_that_a_process_has(names: list[str]) -> None:
    """Equal to workers that train the same row blocks in one process, with their bits and bytes."""
    choices = {
        name: KNOBS.get(name, {"min_size": 0} if "min_size" in method_keys()[name] else {})
        for name in names
    }
    ranks = pool(4).run(train_between_nodes, choices)
    reference = pool(1).run(train_in_one_process, choices)[0]
    for rank, seen in enumerate(ranks):
        for name in names:
            print(name)
            parameters, bits, memory = seen[name]
            expected, all_bits, all_bytes = reference[name]
            for a, b in zip(parameters, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
            assert memory == all_bytes[rank % 2]
            if name != "exponents":  # whose bits follow from values, as close as parameters are
                assert bits == all_bits[rank % 2]


def test_residuals_are_those_of_shards_by_the_names_of_parameters() -> None:
    """Only the first shard has a row of `scale.weight`; biases are sent uncompressed."""
    names = ["experts", "first.weight", "last.weight", "wide.weight"]
    ranks = pool(4).run(names_in_states)
    assert (
        ranks[0] == ranks[2] == [*names[:1], "filter.weight", *names[1:3], "scale.weight", names[3]]
    )
    assert ranks[1] == ranks[3] == [*names[:1], "filter.weight", *names[1:]]


def test_shards_of_columns_are_matrices_too() -> None:
    for sent, plain in pool(4).run(train_columns):
        torch.testing.assert_close(sent, plain, rtol=1e-4, atol=1e-5)
