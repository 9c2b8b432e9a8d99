"""Every choice of conf/compressor as a compressor, gradients to give it, and steps in any layout."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from gloo_pool import Process
from hydra import compose, initialize_config_dir
from torch import Tensor

from gcbench.comm import Comm, VirtualComm
from gcbench.compressors import Aggregated, Compressor, Grads, State, Step
from gcbench.config import Config, conf_directory, register, resolve
from gcbench.launch.instantiate import make

WORKERS = 4

CHOICES = sorted(path.stem for path in (conf_directory() / "compressor").glob("*.yaml"))

# What a choice is tried with, wherever it has the keys; buckets smaller than the test gradients.
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "all tensors": {"min_size": 0, "bucket_size": 16, "error_feedback": False},
    "small tensors whole": {"min_size": 100, "bucket_size": 16},
    "error feedback": {"error_feedback": True, "min_size": 0, "bucket_size": 16},
    "ecq": {"error_feedback": True, "alpha": 0.2, "beta": 0.9, "min_size": 0, "bucket_size": 16},
    "l2": {"norm": "l2", "min_size": 0, "bucket_size": 16, "error_feedback": False},
    "other levels": {"levels": 5, "min_size": 0, "bucket_size": 16},
    "other level count": {"level_count": 9, "min_size": 0, "bucket_size": 16, "error_feedback": False},
    "per layer": {"per_layer": True, "min_size": 0},
    "aggregated memory": {"memory": "aggregated", "error_feedback": True},
    "cold start": {"warm_start": False, "iterations": 3},
    "best approximation": {"svd": True},
    "clipped norm": {"clip_norm": 0.5, "min_size": 0, "bucket_size": 16},
    "clipped values": {"clip_sigma": 1.5, "min_size": 0, "bucket_size": 16},
    "dense at first": {"dense_steps": 1, "min_size": 0, "bucket_size": 16},
    "scattered": {"exchange": "scatter", "min_size": 0, "bucket_size": 16},
    "scattered, coded again": {"exchange": "scatter_coded", "min_size": 100, "bucket_size": 16},
    "scattered, with memory": {"exchange": "scatter_coded", "error_feedback": True, "min_size": 0, "bucket_size": 16},
    "summed": {"exchange": "sum", "min_size": 0, "bucket_size": 16},
    "summed, with memory": {"exchange": "sum", "error_feedback": True, "norm": "l2", "min_size": 0, "bucket_size": 16},
    "aligned": {"align": True, "min_size": 0, "bucket_size": 16},
    "hierarchical": {"exchange": "hierarchical", "workers_per_node": 2, "min_size": 0, "bucket_size": 16},
    "hierarchical, with memory": {
        "exchange": "hierarchical",
        "workers_per_node": 2,
        "error_feedback": True,
        "min_size": 100,
        "bucket_size": 16,
    },
    "dense elias": {"code": "elias_dense", "min_size": 0, "bucket_size": 16, "error_feedback": False},
    "sparse elias": {"code": "elias_sparse", "levels": 1, "norm": "l2", "min_size": 100, "bucket_size": 64},
    "ans, with memory": {"code": "ans", "error_feedback": True, "min_size": 0, "bucket_size": 64},
    "alternating": {"variant": "alternating"},
    "drawn once": {"variant": "unbiased"},
    "small positions": {"index": "auto"},
    "few values": {"k": 50},
    "many scales": {"scales": [5, 0, 3], "k": 100},
    "one scale": {"scales": [8]},
    "map of positions": {"index": "auto", "fraction": 0.3},
}
# The keys without which a variant would be another one.
ESSENTIAL = {
    "all tensors": "min_size",
    "small tensors whole": "min_size",
    "error feedback": "error_feedback",
    "ecq": "alpha",
    "l2": "norm",
    "other levels": "levels",
    "other level count": "level_count",
    "per layer": "per_layer",
    "aggregated memory": "memory",
    "cold start": "warm_start",
    "best approximation": "svd",
    "clipped norm": "clip_norm",
    "clipped values": "clip_sigma",
    "dense at first": "dense_steps",
    "dense elias": "code",
    "sparse elias": "code",
    "ans, with memory": "code",
    "alternating": "variant",
    "drawn once": "variant",
    "small positions": "index",
    "few values": "k",
    "many scales": "scales",
    "one scale": "scales",
    "map of positions": "index",
    "scattered": "exchange",
    "scattered, coded again": "exchange",
    "scattered, with memory": "exchange",
    "summed": "exchange",
    "summed, with memory": "exchange",
    "aligned": "align",
    "hierarchical": "workers_per_node",
    "hierarchical, with memory": "workers_per_node",
}

# The choices of a variant that not all which have its keys can be, or need be tried with.
ONLY = {
    "alternating": {"unbiased_lowrank"},
    "drawn once": {"atomo"},
    "scattered": {"qsgd", "ecqsgd"},
    "scattered, coded again": {"qsgd", "ecqsgd", "orq", "onebit"},
    "scattered, with memory": {"qsgd", "ecqsgd", "bingrad_b"},
    "summed": {"qsgd", "ecqsgd", "orq", "terngrad"},
    "summed, with memory": {"qsgd", "ecqsgd", "bingrad_pb"},
    "hierarchical": {"qsgd", "ecqsgd"},
    "hierarchical, with memory": {"qsgd", "ecqsgd"},
    "one scale": {"maxnorm_multiscale"},
}


@cache
def composed(choice: str, *overrides: str) -> Config:
    """The checked configuration, as the command line makes it."""
    register()
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        tree = compose("config", [f"compressor={choice}", *overrides], return_hydra_config=True)
    return resolve(tree)


def built(choice: str, **settings: Any) -> Compressor:
    overrides = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items()]
    compressor: Compressor = make(composed(choice, *overrides)["compressor"], "compressor")
    return compressor


def variants(choice: str) -> dict[str, dict[str, Any]]:
    """The variants that this choice has, each with the keys that this choice has."""
    keys = composed(choice)
    return {
        variant: {k: v for k, v in settings.items() if k in keys}
        for variant, settings in VARIANTS.items()
        if ESSENTIAL.get(variant, "seed") in keys and choice in ONLY.get(variant, CHOICES)
    }


ALL = [(choice, variant) for choice in CHOICES for variant in variants(choice)]


def compressor_of(choice: str, variant: str) -> Compressor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return built(choice, **variants(choice)[variant])


# Gradients

SHAPES: dict[str, tuple[int, ...]] = {
    "conv": (6, 3, 3, 3),
    "conv bias": (6,),
    "matrix": (10, 13),
    "scalar": (),
    "twin": (10, 13),
    "one": (1,),
    "row": (1, 37),
}


def gradients(workers: Sequence[int], number: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Grads:
    """`{name: [w, *shape]}` for one step, each worker's from its own generator, with a part that all share."""
    found: Grads = {}
    for i, (name, shape) in enumerate(shapes.items()):
        common = torch.randn(shape, generator=torch.Generator().manual_seed(10_000 + i))
        own = [
            torch.randn(shape, generator=torch.Generator().manual_seed(1000 * worker + 100 * number + i)) for worker in workers
        ]
        found[name] = torch.stack([common + x for x in own]) * 0.1
    return found


def offsets(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = start
        start += torch.Size(shape).numel()
    return found


def shapes_of(grads: Grads) -> dict[str, tuple[int, ...]]:
    return {k: tuple(g.shape[1:]) for k, g in grads.items()}


def aggregate(
    compressor: Compressor,
    grads: Grads,
    *,
    number: int = 0,
    seed: int = 1,
    state: State | None = None,
    comm: Comm | None = None,
) -> Aggregated:
    """One step; without `comm`, of as many virtual workers as there are rows."""
    comm = comm or VirtualComm(len(next(iter(grads.values()))))
    step = Step(number, seed, comm.local, offsets(shapes_of(grads)))
    return compressor.aggregate(grads, state or State(), comm, step)


def flat(grads: Grads) -> Tensor:
    """`[w, n]` in float64."""
    return torch.cat([g.reshape(g.shape[0], -1) for g in grads.values()], dim=1).double()


class Trace(NamedTuple):
    """What a process saw of some steps."""

    updates: list[Grads]
    sent: list[Grads]
    memories: list[list[Grads]]  # by step and layer of the state, each worker's own
    sent_bits: list[int]
    received_bits: list[int]


STEPS = 3


def trace(compressor: Compressor, comm: Comm, steps: int = STEPS) -> Trace:
    state = State()
    updates, sent, memories = [], [], []
    for number in range(steps):
        out = aggregate(compressor, gradients(comm.local, number), number=number, state=state, comm=comm)
        state = out.state
        updates.append(out.update)
        sent.append(out.sent())
        memories.append([layer.per_worker for layer in state.layers()])
    return Trace(updates, sent, memories, comm.meter.sent_bits, comm.meter.received_bits)


def traces_over_gloo(process: Process, compressors: dict[Any, Compressor]) -> dict[Any, Trace]:
    return {key: trace(compressor, process.comm(WORKERS)) for key, compressor in compressors.items()}


def traces_in_one_process(compressors: dict[Any, Compressor]) -> dict[Any, Trace]:
    return {key: trace(compressor, VirtualComm(WORKERS)) for key, compressor in compressors.items()}
