"""Every choice of conf/compressor as a compressor, gradients to give it, and steps."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import cache
from typing import Any

from gcbench.core.compressor import Compressor
from gcbench.core.conf import Config, conf_directory
from gcbench.core.method_files import merge, read_file, read_method
from gcbench.core.wrappers.virtual import aggregate
from gcbench.runner.check.steps import (
    SHAPES,
    STEPS,
    WORKERS,
    Trace,
    flat,
    gradients,
    shapes_of,
    trace,
)
from gcbench.runner.check.subject import SETTINGS
from gcbench.runner.config.compose import register
from gcbench.runner.config.composed import fill
from gcbench.runner.config.keys import read_knobs
from gcbench.runner.launch.instantiate import make

__all__ = [  # re-exports the steps of the package's own checks, too
    "ALL",
    "CHOICES",
    "DIFFERENT",
    "FEW",
    "SHAPES",
    "STEPS",
    "VARIANTS",
    "WORKERS",
    "Trace",
    "aggregate",
    "build_method",
    "build_unchecked",
    "compose_method",
    "compressor_of",
    "flat",
    "gradients",
    "keys_of",
    "settings_of",
    "shapes_of",
    "trace",
    "variants",
]

CHOICES = sorted(path.stem for path in (conf_directory() / "compressor").glob("*.yaml"))

SMALL = {"min_size": 0, "bucket_size": 16}
IN_NODES = {"workers_per_node": 2, "exchange": "hierarchical"}
NO_RESIDUAL, RESIDUAL = {"error_feedback": False}, {"error_feedback": True}
THROUGH = {"bucket_scope": "gradient", "bucket_size": 64}
# Settings to try with every choice that has their first key, as far as it has the others; buckets
# are smaller than gradients.
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    **SETTINGS,
    "ecq": {"alpha": 0.2, "error_feedback": True, "beta": 0.9, **SMALL},
    "ef21": {"error_feedback": "ef21", **SMALL},
    "loco": {"error_feedback": "loco", **SMALL},
    "reset": {"reset_steps": 2, "min_size": 0},
    "l2": {"norm": "l2", **SMALL, **NO_RESIDUAL},
    "other levels": {"levels": 5, **SMALL},
    "other level count": {"level_count": 9, **SMALL, **NO_RESIDUAL},
    "per layer": {"per_layer": True, "min_size": 0},
    "aggregated residual": {"residual": "aggregated", **RESIDUAL},
    "cold start": {"warm_start": False, "iterations": 3},
    "best approximation": {"svd": True},
    "clipped norm": {"clip_norm": 0.5, **SMALL},
    "clipped values": {"clip_sigma": 1.5, **SMALL},
    "dense at first": {"dense_steps": 1, **SMALL},
    "scattered": {"exchange": "scatter", **SMALL},
    "scattered, coded again": {"exchange": "scatter_coded", **SMALL, "min_size": 100},
    "scattered, with residuals": {"exchange": "scatter_coded", **RESIDUAL, **SMALL},
    "in a ring": {"exchange": "ring", **SMALL},
    "in a ring, with residuals": {"exchange": "ring", **RESIDUAL, **SMALL, "min_size": 100},
    "added in fp32": {"accumulate": "fp32"},
    "rounded by chance": {"rounding": "stochastic", **SMALL},
    "rounded by chance, added in fp32": {"rounding": "stochastic", "accumulate": "fp32"},
    "other format": {"format": "e5m2", **SMALL},
    "summed": {"exchange": "sum", **SMALL},
    "summed, with residuals": {"exchange": "sum", **RESIDUAL, "norm": "l2", **SMALL},
    "aligned": {"align": True, **SMALL},
    "hierarchical": {**IN_NODES, **SMALL},
    "hierarchical, with residuals": {**IN_NODES, **RESIDUAL, **SMALL, "min_size": 100},
    "dense elias": {"code": "elias_dense", **SMALL, **NO_RESIDUAL},
    "sparse elias": {"code": "elias_sparse", "levels": 1, "norm": "l2", "min_size": 100}
    | {"bucket_size": 64},
    "ans, with residuals": {"code": "ans", **RESIDUAL, "min_size": 0, "bucket_size": 64},
    "alternating": {"variant": "alternating"},
    "drawn once": {"variant": "unbiased"},
    "small positions": {"index": "auto"},
    "few values": {"k": 50},
    "many scales": {"scales": [5, 0, 3], "k": 100},
    "one scale": {"scales": [8]},
    "map of positions": {"index": "auto", "fraction": 0.3},
    "adaptive": {"adapt_every": 10, **SMALL},
    "rotated": {"rotate": "hadamard", **SMALL, **NO_RESIDUAL},
    "rotated, summed, with residuals": {
        "rotate": "hadamard",
        "exchange": "sum",
        **RESIDUAL,
        **SMALL,
    },
    "through the gradient": {**THROUGH, "min_size": 0},
    "through the gradient, summed, with residuals": {**THROUGH, "exchange": "sum"}
    | {**RESIDUAL, "min_size": 100},
    "small chunks": {"chunk_size": 20, "fraction": 0.1, "min_size": 0},
    "first gradient": {"momentum_start": "gradient"},
    "mean of senders": {"combine": "senders", "fraction": 0.1, "min_size": 0},
    "as long as before": {"scale": "rms", "bucket_size": 16, **RESIDUAL},
    "momentum from zero": {"momentum_start": "zero"},
}
# The only choices to try with some variants, although others have the keys, too.
ONLY = {
    "ef21": {"qsgd", "powersgd", "onebit", "random_k"},
    "loco": {"qsgd", "top_k"},
    "alternating": {"unbiased_lowrank"},
    "drawn once": {"atomo"},
    "scattered": {"qsgd", "ecqsgd"},
    "scattered, coded again": {"qsgd", "ecqsgd", "orq", "onebit"},
    "scattered, with residuals": {"qsgd", "ecqsgd", "bingrad_b"},
    "in a ring": {"qsgd", "natural", "nvfp4"},
    "in a ring, with residuals": {"qsgd", "mxfp8"},
    "other format": {"fp8", "mxfp8"},
    "rounded by chance, added in fp32": {"bf16", "fp16"},
    "summed": {"qsgd", "ecqsgd", "orq", "terngrad"},
    "summed, with residuals": {"qsgd", "ecqsgd", "bingrad_pb"},
    "hierarchical": {"qsgd", "ecqsgd"},
    "adaptive": {"eden", "powersgd", "qsgd"},
    "rotated": {"qsgd", "orq", "scaled_sign"},
    "rotated, summed, with residuals": {"ecqsgd"},
    "hierarchical, with residuals": {"qsgd", "ecqsgd"},
    "through the gradient": {"qsgd", "orq", "bingrad_b", "onebit", "top_k"},
    "through the gradient, summed, with residuals": {"ecqsgd", "linear"},
    "one scale": {"maxnorm_multiscale"},
    "first gradient": {"signum"},
    "as long as before": {"scaled_sign"},
    "momentum from zero": {"onebit_adam"},
}


@cache
def compose_method(choice: str, *overrides: str) -> Config:
    """Return the checked keys of a method and its node, as plain values."""
    return read_method(choice, read_knobs(overrides))


def keys_of(choice: str) -> Config:
    """Return the keys that the choice defines, without the node that is made from them."""
    return {key: value for key, value in compose_method(choice).items() if key != "compressor"}


def build_unchecked(choice: str, settings: Config) -> Compressor:
    """Return the compressor for these settings, without checking or completing them."""
    register()
    file = read_file(conf_directory() / "compressor" / f"{choice}.yaml")
    merge(file, settings)
    node = fill(file)["compressor"]
    compressor: Compressor = make(node, "compressor")
    return compressor


def build_method(choice: str, **settings: Any) -> Compressor:
    if not settings:
        return compressor_of(choice, "as it is")
    node = compose_method(choice, *_overrides(settings))["compressor"]
    compressor: Compressor = make(node, "compressor")
    return compressor


def variants(choice: str) -> dict[str, dict[str, Any]]:
    """Return the variants to try with this choice, each with those keys that the choice has."""
    keys = keys_of(choice)
    return {
        variant: {k: v for k, v in settings.items() if k in keys}
        for variant, settings in VARIANTS.items()
        if next(iter(settings), None) in {None, *keys} and choice in ONLY.get(variant, CHOICES)
    }


ALL = [(choice, variant) for choice in CHOICES for variant in variants(choice)]
# For slow tests: without those that differ from another one only in a number or a wrapper.
DIFFERENT = [
    key
    for key in ALL
    if key[1] not in {"ecq", "other levels", "cold start", "clipped norm", "aggregated residual"}
]


def one_of_each() -> list[tuple[str, str]]:
    """Return one variant of every choice and one choice of every variant.

    The variant of a choice is "all tensors" if it has that one.
    """
    by_choice = {key[0]: key for key in reversed(DIFFERENT)}
    by_choice |= {key[0]: key for key in DIFFERENT if key[1] == "all tensors"}
    by_variant = {key[1]: key for key in reversed(DIFFERENT)}
    return sorted({*by_choice.values(), *by_variant.values()})


# Every choice and every variant is tried on every change, all pairs of them every night.
FEW = one_of_each()


def compressor_of(choice: str, variant: str) -> Compressor:
    return deepcopy(_made(choice, variant))


@cache
def _made(choice: str, variant: str) -> Compressor:
    """Return a compressor to be copied, since making one with Hydra takes ten times as long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compressor: Compressor = make(_config(choice, variant)["compressor"], "compressor")
    return compressor


def settings_of(choice: str, variant: str) -> Config:
    """Return the checked values of a variant's keys."""
    return {k: v for k, v in _config(choice, variant).items() if k != "compressor"}


def _config(choice: str, variant: str) -> Config:
    """Return the checked keys and node of a variant."""
    return compose_method(choice, *_overrides(variants(choice)[variant]))


def _overrides(settings: dict[str, Any]) -> list[str]:
    return [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items()]
