"""Every key of a choice reaches its method: none is read from conf/compressor and then forgotten."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from method_cases import CHOICES, build_unchecked, keys_of

from gcbench.compressors import Compressor

# What a key may be other than it is; what it is now is left out.
OTHER: dict[str, list[Any]] = {
    "align": [True],
    "alpha": [0.25],
    "beta": [0.75],
    "bits": [3],
    "bucket_scope": ["gradient"],
    "bucket_size": [24],
    "clip_norm": [0.125],
    "clip_sigma": [1.25],
    "code": ["elias_dense", "ans"],
    "convolution_bits": [3],
    "dense_steps": [5],
    "error_feedback": [False, True],
    "exchange": ["scatter", "scatter_coded"],
    "fraction": [0.5],
    "index": ["auto"],
    "iterations": [4],
    "k": [7],
    "level_count": [9],
    "levels": [5],
    "memory": ["aggregated"],
    "min_size": [123],
    "momentum": [0.5],
    "momentum_start": ["gradient"],
    "norm": ["linf", "l2"],
    "per_layer": [True],
    "rank": [3],
    "scales": [[5, 3]],
    "svd": [True],
    "variant": ["unbiased", "alternating"],
    "warm_start": [False],
    "workers_per_node": [2],
}
# With which alone a key means something.
NEEDED = {
    "alpha": {"error_feedback": True},
    "beta": {"error_feedback": True},
    "workers_per_node": {"exchange": "hierarchical"},
}
# Words of one choice that another does not know.
FOREIGN = (("atomo", "alternating"), ("unbiased_lowrank", "unbiased"))
READ_ELSEWHERE = {"recommended"}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_key_of_a_choice_changes_its_method(choice: str) -> None:
    keys = keys_of(choice).keys() - READ_ELSEWHERE
    assert keys <= OTHER.keys(), "say above what else a new key may be"
    for key in keys:
        now = keys_of(choice)[key]
        needed = {k: v for k, v in NEEDED.get(key, {}).items() if k in keys}
        values = [v for v in OTHER[key] if v != now and (choice, v) not in FOREIGN]
        assert values, key
        for value in values:
            assert quietly_built(choice, needed) == quietly_built(choice, needed)
            changed = quietly_built(choice, {**needed, key: value})
            assert changed != quietly_built(choice, needed), f"{key}={value}"


def quietly_built(choice: str, settings: dict[str, Any]) -> Compressor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a memory may grow
        return build_unchecked(choice, settings)
