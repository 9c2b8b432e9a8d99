"""gcbench: compare gradient-compression methods by real data-parallel training.

In a script or a notebook:

- `compress(ddp, "powersgd", rank=2)`: use a compressor in your own training loop;
- `comm_hook("powersgd", rank=2)`: the same for whoever calls `ddp.register_comm_hook`;
- `compress_weights(model, "qsgd", bits=4)`: let FSDP2 gather weights in a code of differences;
- `local_steps(model, optimizer, every=30)`: let workers train alone between exchanges (DiLoCo);
- `join()`: be in torch's default process group, also after torchrun has restarted the processes;
- `codec("qsgd", bits=4)`: encode and decode buffers of your own framework;
- `run("model=resnet20", "compressor=qsgd", bits=4)`: train once and return the result;
- `sweep("compressor=qsgd", bits=[2, 4, 8])`: run a grid and return all results;
- `load_runs("outputs")`: load recorded runs as a pandas DataFrame.

Slow imports, such as torch's, wait until one of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcbench.launch.meeting import join
    from gcbench.library.codecs import codec
    from gcbench.library.comm_hook import comm_hook
    from gcbench.library.compress import compress
    from gcbench.library.compression import Compression
    from gcbench.library.frames import load_runs
    from gcbench.library.local_steps import local_steps
    from gcbench.library.runs import run, sweep
    from gcbench.library.weights import compress_weights

__all__ = [
    "Compression",
    "codec",
    "comm_hook",
    "compress",
    "compress_weights",
    "join",
    "load_runs",
    "local_steps",
    "run",
    "sweep",
]

_MODULES = {
    "Compression": "gcbench.library.compression",
    "codec": "gcbench.library.codecs",
    "comm_hook": "gcbench.library.comm_hook",
    "compress": "gcbench.library.compress",
    "compress_weights": "gcbench.library.weights",
    "join": "gcbench.launch.meeting",
    "load_runs": "gcbench.library.frames",
    "local_steps": "gcbench.library.local_steps",
    "run": "gcbench.library.runs",
    "sweep": "gcbench.library.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gcbench' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
