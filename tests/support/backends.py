"""Run tests with eager, native or compiled codecs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from needed import skip

from gcbench.core.codecs.kernels import Backend, keep_backend, use_backend


def needs_compiler() -> None:
    """Skip the running test if there is no C++ compiler."""
    if not any(map(shutil.which, ("g++", "clang++"))):
        skip("compiler", "compiled codecs are compiled on a CPU")


def use(backend: Backend) -> Iterator[None]:
    """Use a backend for kernels until a fixture ends."""
    if backend != "eager":
        needs_compiler()
    with keep_backend():
        use_backend(backend)
        yield
