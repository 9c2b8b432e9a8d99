"""gcbench.compress on FSDP2 modules whose layers are used in turn, in four processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo_pool import pool
from turn_cases import train_in_turn

from gcbench.core.parameters import name_without_wrappers


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "between",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["by shards", "between nodes"],
)
def test_a_residual_stays_with_its_parameter(between: bool, seed: int) -> None:
    """What was sent of each parameter adds up to its gradients, whichever steps used it."""
    methods: dict[str, dict[str, Any]] = {
        "top_k": {"fraction": 0.3, "min_size": 0},
        "ef21": {"fraction": 1.0, "min_size": 0},  # exact, if each mean is that of its estimates
    }
    if between:  # exact, if factors that were sent in different steps are not mixed up
        methods["acpsgd"] = {"rank": 16, "min_ratio": 0}
    for name, knobs in methods.items():
        for updates, gradients in pool(4).run(train_in_turn, between, name, knobs, seed):
            assert updates.keys() == gradients.keys()
            for key in updates:
                torch.testing.assert_close(updates[key], gradients[key], rtol=1e-4, atol=1e-3)


def test_names_are_those_of_the_plain_module() -> None:
    for name, plain in {
        "_orig_mod.layers.0.weight": "layers.0.weight",
        "layers._orig_mod.0._orig_mod.weight": "layers.0.weight",
        "layers.0._checkpoint_wrapped_module.weight": "layers.0.weight",
        "layers.0._orig_mod": "layers.0",
        "_orig_mod": "",
        "my_orig_mod.weight": "my_orig_mod.weight",
    }.items():
        assert name_without_wrappers(name) == plain
