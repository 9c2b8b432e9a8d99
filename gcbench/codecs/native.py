"""C++ of our own, where `torch.compile` does not come near to memory speed: compiled by its compiler, and kept in its cache."""

from __future__ import annotations

from ctypes import CDLL
from functools import cache
from pathlib import Path
from typing import cast


@cache
def library(name: str) -> CDLL:
    """The functions of `<name>.cpp` beside this file."""
    from torch._inductor.codecache import CppCodeCache  # slow to import

    source = Path(__file__).with_name(f"{name}.cpp").read_text()
    return cast(CDLL, CppCodeCache.load(source, extra_flags=["-ftree-loop-vectorize"]))  # which it turns off for its own
