"""gcbench: compare gradient-compression methods by real data-parallel training.

In a script or a notebook:

- `compress(ddp, "powersgd", rank=2)`: use a compressor in your own training loop;
- `comm_hook("powersgd", rank=2)`: the same for whoever calls `ddp.register_comm_hook`;
- `compress_weights(model, "qsgd", bits=4)`: let FSDP2 gather weights in a code of differences;
- `local_steps(model, optimizer, every=30)`: let workers train alone between exchanges (DiLoCo);
- `join()`: be in torch's default process group, also after torchrun has restarted the processes;
- `profile(ddp)`: measure your own loop, and predict whether compression pays in it;
- `codec("qsgd", bits=4)`: encode and decode buffers of your own framework;
- `run("model=resnet20", "compressor=qsgd", bits=4)`: train once and return the result;
- `sweep("compressor=qsgd", bits=[2, 4, 8])`: run a grid and return all results;
- `load_runs("outputs")`: load recorded runs as a pandas DataFrame;
- `Codec`, `Compressor`, `State`, `build`, ...: what a method of your own is made of.

Slow imports, such as torch's, wait until one of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcbench.core.codec import Codec
    from gcbench.core.compressor import (
        Aggregated,
        Compressor,
        Goal,
        Grads,
        MethodError,
        Properties,
        State,
        Step,
    )
    from gcbench.core.errors import ConfigError
    from gcbench.core.library.codecs import codec
    from gcbench.core.library.comm_hook import comm_hook
    from gcbench.core.library.compress import compress
    from gcbench.core.library.compression import Compression
    from gcbench.core.library.local_steps import local_steps
    from gcbench.core.library.weights import compress_weights
    from gcbench.core.meeting import join
    from gcbench.core.wrappers.build import build
    from gcbench.runner.frames import load_runs
    from gcbench.runner.profile.profile import profile
    from gcbench.runner.runs import run, sweep

__all__ = [
    "Aggregated",
    "Codec",
    "Compression",
    "Compressor",
    "ConfigError",
    "Goal",
    "Grads",
    "MethodError",
    "Properties",
    "State",
    "Step",
    "build",
    "codec",
    "comm_hook",
    "compress",
    "compress_weights",
    "join",
    "load_runs",
    "local_steps",
    "profile",
    "run",
    "sweep",
]

_MODULES = {
    "Aggregated": "core.compressor",
    "Codec": "core.codec",
    "Compression": "core.library.compression",
    "Compressor": "core.compressor",
    "ConfigError": "core.errors",
    "Goal": "core.compressor",
    "Grads": "core.compressor",
    "MethodError": "core.compressor",
    "Properties": "core.compressor",
    "State": "core.compressor",
    "Step": "core.compressor",
    "build": "core.wrappers.build",
    "codec": "core.library.codecs",
    "comm_hook": "core.library.comm_hook",
    "compress": "core.library.compress",
    "compress_weights": "core.library.weights",
    "join": "core.meeting",
    "load_runs": "runner.frames",
    "local_steps": "core.library.local_steps",
    "profile": "runner.profile.profile",
    "run": "runner.runs",
    "sweep": "runner.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gcbench' has no attribute {name!r}")
    return getattr(import_module(f"gcbench.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
