"""Traces of methods, by the equations of their papers or as their authors' code has them.

`test_forms.py` compares every method with its traces. A trace has the `form` (paper, code or ours),
what it is `of`, and the settings that give it. One that no settings give has `differs`, its
distance from the method's own form. `updates` are those of consecutive steps on `gradients`, or
changes of parameters for `onebit_adam`; `levels` are, for each value of the first worker's first
gradient, the two that it is rounded to and the probability of the upper one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from trace_levels import (
    between,
    bingrad_pb,
    clipped,
    evenly,
    levels,
    multi_scale,
    orq_table,
    powers_of_two,
)
from trace_recipes import (
    by_bucket,
    demo,
    ef21,
    largest,
    mean_sign,
    onebit_adam,
    rms_sign,
    signum,
    sparseloco,
    two_means,
    with_residual,
    without_residual,
)

Numbers = Sequence[Sequence[float]]
Trace = dict[str, Any]
BUCKETS = {"bucket_size": 16}
FREQUENCIES = {"coefficients": 3, "chunk_side": 4}
CHUNKS = {"fraction": 0.1, "chunk_size": 20}
WHOLE = 10**6  # a bucket that no tensor fills


def trace(form: str, of: str, settings: dict[str, Any], updates: Numbers, **more: Any) -> Trace:
    return {"form": form, "of": of, "settings": settings, **more, "updates": updates}


def drawn(of: str, settings: dict[str, Any], found: Numbers) -> Trace:
    return {"form": "paper", "of": of, "settings": settings, "levels": found}


def differing(of: str, own: Numbers, code: Numbers) -> Trace:
    """Return a trace of code that no settings give, with its distance from the own form."""
    distance = float(np.linalg.norm(np.subtract(own, code)) / np.linalg.norm(code))
    return {"form": "code", "of": of, "differs": round(distance, 3), "updates": code}


def mean(of: str, mantissa: int) -> list[Trace]:
    exact = without_residual(lambda v: v)
    return [trace("code", of, {}, exact, tolerance=2.0**-mantissa)]


def of_signs() -> dict[str, list[Trace]]:
    signs, roots = (without_residual(by_bucket(code)) for code in (mean_sign, rms_sign))
    halves = with_residual(by_bucket(two_means(lambda v: v >= 0)))
    sides = without_residual(by_bucket(two_means(lambda v: v >= v.mean())))
    own, old = (
        onebit_adam(by_bucket(rms_sign), True, False),
        onebit_adam(by_bucket(mean_sign), False, True),
    )
    deepspeed = onebit_adam(rms_sign, True, False, server=True)
    corrected = {"optimizer": {"bias_correction": True}}
    ours = {"scale": "mean", "momentum_start": "zero", **corrected}
    return {
        "scaled_sign": [
            trace("paper", "Karimireddy et al., algorithm 1; ORQ, equation 13", BUCKETS, signs),
            trace("code", "DeepSpeed's scale", {**BUCKETS, "scale": "rms"}, roots),
        ],
        "sign_norm": [trace("paper", "PowerSGD, table 4", {}, with_residual(mean_sign))],
        "onebit": [trace("paper", "Seide et al., section 3", BUCKETS, halves)],
        "bingrad_b": [trace("paper", "ORQ, equations 16 and 17", BUCKETS, sides)],
        "signum": [
            trace("paper", "algorithm 1", {}, signum(0.9, first=False)),
            trace("code", "PowerSGD's", {"momentum_start": "gradient"}, signum(0.9, first=True)),
        ],
        "onebit_adam": [
            trace("paper", "algorithm 1, without the server", BUCKETS, own),
            trace("ours", "no code's", {**BUCKETS, **ours}, old),
            differing("DeepSpeed's OnebitAdam: tensors padded, and coded again", own, deepspeed),
        ],
    }


def of_few_values() -> dict[str, list[Trace]]:
    own = sparseloco(False, False, 0.1, 20, 0.95)
    senders = sparseloco(True, False, 0.1, 20, 0.95)
    templar = sparseloco(True, True, 0.1, 20, 0.95)
    return {
        "top_k": [
            trace("paper", "PowerSGD, table 4", {"fraction": 0.1}, with_residual(largest(0.1)))
        ],
        "ef21": [trace("paper", "algorithm 2", {"fraction": 0.1}, ef21(largest(0.1)))],
        "demo": [
            trace("paper", "algorithm 1", FREQUENCIES, demo(False, 3, 4, 0.999)),
            trace(
                "code",
                "bloc97/DeMo",
                {**FREQUENCIES, "combine": "senders"},
                demo(True, 3, 4, 0.999),
            ),
        ],
        "sparseloco": [
            trace("paper", "algorithm 1, one local step", CHUNKS, own),
            trace("code", "tplr-ai/templar's mean", {**CHUNKS, "combine": "senders"}, senders),
            differing("tplr-ai/templar: sigma of n - 1, even K, clipped norms", own, templar),
        ],
    }


def of_random_levels() -> dict[str, list[Trace]]:
    fixed = {**BUCKETS, "level_count": 5}
    of_norm = evenly(15, lambda v: float(np.linalg.norm(v)))
    return {
        "qsgd": [drawn("section 3.1", {**BUCKETS, "min_size": 0}, levels(evenly(15)))],
        "ecqsgd": [drawn("section 3, first step", BUCKETS, levels(of_norm))],
        "qsgd_levels": [drawn("ORQ, section 3.1", fixed, levels(evenly(5)))],
        "terngrad": [
            drawn("equations 1 to 3, section 4", {}, levels(clipped(evenly(3), 2.5), WHOLE))
        ],
        "linear": [drawn("ORQ, section 5", fixed, levels(between(quintiles)))],
        "orq": [drawn("algorithm 1", fixed, levels(between(orq_table)))],
        "bingrad_pb": [drawn("ORQ, equations 14 and 15", BUCKETS, levels(bingrad_pb))],
        "natural": [drawn("definition 1", {}, levels(powers_of_two))],
        "maxnorm": [drawn("algorithm 1", {}, levels(evenly(15), WHOLE, whole=True))],
        "maxnorm_multiscale": [drawn("algorithm 2", {}, levels(multi_scale, WHOLE, whole=True))],
    }


def quintiles(v: Any) -> Any:
    return np.quantile(v, np.linspace(0, 1, 5), method="nearest")


@cache
def all_traces() -> dict[str, list[Trace]]:
    return {
        "none": mean("torch's DistributedDataParallel", 20),
        "fp16": mean("torch's fp16_compress_hook", 9),
        "bf16": mean("torch's bf16_compress_hook", 6),
        **of_signs(),
        **of_few_values(),
        **of_random_levels(),
    }
