"""Tests once with eager and once with compiled codecs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from gcbench.codecs.kernels import Backend, use_backend


def using(backend: Backend) -> Iterator[None]:
    """For a fixture."""
    if backend == "compiled" and not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("no C++ compiler, which compiled codecs need on a CPU")
    use_backend(backend)
    yield
    use_backend("eager")
