"""Our own C++, where `torch.compile` does not come near the speed of memory.

Inductor compiles and caches it. The public way, `torch.utils.cpp_extension`, needs ninja, on which
PyTorch does not depend, and includes PyTorch's headers, with which a file takes twice as long to
compile. Operators of `torch.library` would be traced by compilers, which nothing here needs. The
price is one private import, `CppCodeCache`; the tests of compiled codecs fail on a PyTorch without
it.
"""

from __future__ import annotations

from ctypes import CDLL, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcbench.codecs.kernels import kernels_are_compiled, sums_in_use
from gcbench.reasons import in_one_line

_TYPES: dict[str, Any] = {"*": c_void_p, "f": c_float, "i": c_int, "n": c_int64}


def load_native(
    file: str, functions: tuple[tuple[str, str], ...], x: Tensor, adds_floats: bool = True
) -> CDLL | None:
    """Return the compiled `<file>.cpp` beside this module, or None where it does not apply.

    `functions` are names with their arguments (*: pointer, f: float, i: int, n: int64). They apply
    if x is float32 on the CPU and codecs or, for functions that add floats, sums are not eager.
    Raises RuntimeError if the file cannot be compiled.
    """
    applies = sums_in_use() != "eager" if adds_floats else kernels_are_compiled()
    if not applies or x.device.type != "cpu" or x.dtype != torch.float32:
        return None
    return _library(file, functions)


@cache
def _library(file: str, functions: tuple[tuple[str, str], ...]) -> CDLL:
    from torch._inductor.codecache import CppCodeCache  # slow to import

    source = Path(__file__).with_name(f"{file}.cpp").read_text()
    try:
        # Inductor turns the vectorization of loops off for the code that it generates.
        library: CDLL = CppCodeCache.load(source, extra_flags=["-ftree-loop-vectorize"])
    except Exception as error:  # CppCompileError, or whatever else a broken compiler causes
        raise RuntimeError(
            f"the C++ codecs do not compile on this machine ({in_one_line(error)}); "
            "type trainer.codec_backend=eager"
        ) from error
    for name, arguments in functions:
        getattr(library, name).argtypes = [_TYPES[kind] for kind in arguments]
    return library
