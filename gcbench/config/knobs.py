"""The top-level keys: one meaning and one range wherever they appear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gcbench.config.errors import Config, ConfigError
from gcbench.config.names import NAME_HINT, is_folder_name


@dataclass(frozen=True)
class Knob:
    """A top-level key that compressors share: one meaning and one range wherever it appears."""

    kind: type
    fits: Callable[[Any], bool]
    hint: str
    optional: bool = False


KNOBS = {
    "levels": Knob(
        int,
        lambda v: 1 <= v <= 127,
        "a code of 2 to 8 bits holds 1 to 127 levels; type levels=7 or bits=4",
    ),
    "bits": Knob(
        int, lambda v: 2 <= v <= 8, "a code costs 2 to 8 bits, sign included; type bits=4"
    ),
    "convolution_bits": Knob(
        int,
        lambda v: 2 <= v <= 8,
        "a code costs 2 to 8 bits, sign included; type convolution_bits=4",
    ),
    "bucket_size": Knob(
        int, lambda v: v >= 1, "a bucket holds at least 1 value; type bucket_size=512"
    ),
    "level_count": Knob(
        int, lambda v: 2 <= v <= 256, "a code holds 2 to 256 levels in all; type level_count=5"
    ),
    "per_layer": Knob(bool, lambda v: True, "type true or false"),
    "rank": Knob(int, lambda v: v >= 1, "the factors have at least 1 column; type rank=2"),
    "fraction": Knob(
        float,
        lambda v: 0 < v <= 1,
        "type a share of the values above 0 and up to 1, as in fraction=0.01",
    ),
    "k": Knob(int, lambda v: v >= 1, "type a number of values of at least 1, as in k=10000"),
    "scales": Knob(
        list,
        lambda v: (
            bool(v) and all(type(b) is int and 0 <= b <= 12 for b in v) and len(set(v)) == len(v)
        ),
        "type different whole numbers of bits from 0 to 12, as in scales=[2,6]",
    ),
    "momentum": Knob(
        float, lambda v: 0 <= v < 1, "type a weight of at least 0 and below 1, as in momentum=0.9"
    ),
    "momentum_start": Knob(
        str,
        lambda v: v in ("zero", "gradient"),
        "type momentum_start=zero or momentum_start=gradient",
    ),
    "variant": Knob(
        str,
        lambda v: v in ("text", "alternating", "published", "unbiased"),
        "type variant=text or variant=alternating for unbiased_lowrank, variant=published or variant=unbiased for atomo",
    ),
    "index": Knob(str, lambda v: v in ("int32", "auto"), "type index=int32 or index=auto"),
    "min_size": Knob(
        int, lambda v: v >= 0, "type a number of values, as in min_size=10000, or 0 for none"
    ),
    "dense_steps": Knob(int, lambda v: v >= 0, "type a number of steps, or 0 for none"),
    "norm": Knob(str, lambda v: v in ("linf", "l2"), "type norm=linf or norm=l2"),
    "exchange": Knob(
        str,
        lambda v: v in ("gather", "scatter", "scatter_coded", "sum", "hierarchical"),
        "type exchange=gather, scatter, scatter_coded, sum or hierarchical",
    ),
    "bucket_scope": Knob(
        str,
        lambda v: v in ("tensor", "gradient"),
        "type bucket_scope=tensor or bucket_scope=gradient",
    ),
    "align": Knob(bool, lambda v: True, "type true or false"),
    "workers_per_node": Knob(
        int,
        lambda v: v >= 1,
        "a node has at least 1 worker; type workers_per_node=4, or null",
        optional=True,
    ),
    "code": Knob(
        str,
        lambda v: v in ("fixed", "elias_dense", "elias_sparse", "ans"),
        "type code=fixed, elias_dense, elias_sparse or ans",
    ),
    "memory": Knob(
        str, lambda v: v in ("own", "aggregated"), "type memory=own or memory=aggregated"
    ),
    "iterations": Knob(
        int,
        lambda v: v >= 1,
        "type a number of power iterations a step of at least 1, as in iterations=3",
    ),
    "svd": Knob(bool, lambda v: True, "type true or false"),
    "warm_start": Knob(bool, lambda v: True, "type true or false"),
    "error_feedback": Knob(bool, lambda v: True, "type true or false"),
    "alpha": Knob(float, lambda v: v >= 0, "type a weight of at least 0, as in alpha=1"),
    "beta": Knob(float, lambda v: 0 <= v <= 1, "type a weight from 0 to 1, as in beta=1"),
    "clip_norm": Knob(
        float, lambda v: v > 0, "type a positive norm, as in clip_norm=0.4, or null", optional=True
    ),
    "clip_sigma": Knob(
        float,
        lambda v: v > 0,
        "type a positive number, as in clip_sigma=2.5, or null",
        optional=True,
    ),
    "seed": Knob(int, lambda v: 0 <= v < 2**63, "type a seed of at least 0, as in seed=1"),
    "rerun": Knob(bool, lambda v: True, "type rerun=true or rerun=false"),
    "name": Knob(str, is_folder_name, NAME_HINT, optional=True),
    "outputs": Knob(str, bool, "type a folder, as in outputs=outputs"),
    "directory": Knob(str, bool, "type a folder, or null", optional=True),
}


def _numbers(value: list[Any], lowest: int) -> bool:
    return all(isinstance(v, (int, float)) and v == int(v) and v >= lowest for v in value)


BENCH_KNOBS = {
    "sizes": Knob(
        list,
        lambda v: bool(v) and _numbers(v, 1),
        "type numbers of values, as in sizes=[1000000,10000000]",
    ),
    "draws": Knob(
        list,
        lambda v: set(v) <= {"normal", "laplace", "student"},
        "type some of normal, laplace and student",
    ),
    "recorded": Knob(
        str, bool, "type a file that trainer.record_gradients wrote, or null", optional=True
    ),
    "rounds": Knob(int, lambda v: v >= 1, "type a number of at least 1"),
    "threads": Knob(int, lambda v: v >= 1, "type a number of at least 1"),
    "device": Knob(str, lambda v: v in ("auto", "cpu", "cuda"), "type device=auto, cpu or cuda"),
    "codec_backend": Knob(
        str, lambda v: v in ("compiled", "eager"), "type codec_backend=compiled or eager"
    ),
    "workers": Knob(
        list,
        lambda v: _numbers(v, 2),
        "type numbers of processes of at least 2, as in workers=[2,4]",
    ),
}


def check_knobs(config: Config, knobs: Mapping[str, Knob]) -> None:
    for name, knob in knobs.items():
        if name not in config or (config[name] is None and knob.optional):
            continue
        value = config[name]
        right = isinstance(value, (int, float) if knob.kind is float else knob.kind)
        if isinstance(value, bool) and knob.kind is not bool:
            right = False
        if not right or not knob.fits(value):
            raise ConfigError(f"{name}={value}: {knob.hint}")
