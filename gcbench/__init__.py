"""gcbench: compare gradient-compression methods by real data-parallel training.

In a script or a notebook:

- `compress(ddp, "powersgd", rank=2)`: a compressor in your own training loop.

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcbench.library.ddp import Compression, compress

__all__ = ["Compression", "compress"]

_MODULES = {
    "Compression": "gcbench.library.ddp",
    "compress": "gcbench.library.ddp",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gcbench' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
