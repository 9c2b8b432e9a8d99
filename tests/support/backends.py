"""Tests once with eager and once with compiled codecs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from needed import skip

from gcbench.codecs.kernels import Backend, use_backend


def use(backend: Backend) -> Iterator[None]:
    """Use a backend for kernels within a fixture."""
    if backend == "compiled" and not any(map(shutil.which, ("g++", "clang++"))):
        skip("compiler", "compiled codecs are compiled on a CPU")
    use_backend(backend)
    yield
    use_backend("eager")
