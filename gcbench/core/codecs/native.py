"""Our own C++ for CPUs: plain functions on pointers, built once in the user's private cache.

The public way, `torch.utils.cpp_extension`, needs ninja, on which PyTorch does not depend, and
includes PyTorch's headers, with which a file takes a minute to compile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL, Array, c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codecs.kernels import backend_in_use
from gcbench.core.errors import safe_text
from gcbench.core.private import cache_folder, private_folder

COMPILER_SECONDS = 300  # ten times what an idle core takes
_TYPES: dict[str, Any] = {"*": c_void_p, "d": c_double, "f": c_float, "i": c_int, "n": c_int64}
# With this variable PyTorch takes its kernels for processors without AVX-512; so do codecs.
_AVX2 = os.environ.get("ATEN_CPU_CAPABILITY") == "avx2" and platform.machine() == "x86_64"
# Without -ffast-math, and without products that are added unrounded: results equal eager ones.
_FLAGS = (
    *("-std=c++17", "-O3", "-march=x86-64-v3" if _AVX2 else "-march=native"),
    *("-mprefer-vector-width=512", "-ffp-contract=off"),
    *("-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC"),
)

ADD, WRITE, SUBTRACT = range(3)  # how decoded values get to where floats lie, as in codes.h

_FUNCTIONS = {  # *: pointer, d: double, f: float, i: int, n: int64
    "encode": "*n**d****n*i",
    "decode": "*nn*n*n*ni",
    "natural_encode": "***fnn*****i",
    "natural_decode": "**nn*ni",
    "blocks_encode": "***fn*niiii*****i",
    "blocks_decode": "*n*niii***ni",
    "largest": "***f**nn**i",
    "sparse_mean": "**nnnn*i",
    "grid_codes": "n*****nn****i",
    "rotate": "nn****n*nnni",
    "elias_encode": "*nn*n**n**ni",
    "elias_decode": "*nn*n*n*n*nn*i",
    **dict.fromkeys(("ans_encode", "ans_decode"), "*nn*n*ni"),
    "pack": "*nnnnnnn*i",
    "majority": "*nn*i",
    "pack_lanes": "*nnnn*i",
    "lane_values": "*nnnnfn****i",
    "momentum_step": "n****ffffiii",
    "adam_moments": "n*****ffffi",
    "adam_step": "n****ffffi",
    **{
        name: f"n*{rest}"
        for name, rest in {  # the number of matrices, and their shapes
            "restart": "***",
            "orthogonalize": "*",
            "add_times": "n****f***ni",
            "transposed_times": "n***ni",
            "product_and_rest": "n***n*n**i",
        }.items()
    },
}


def find_compiler() -> str | None:
    """Return the C++ compiler of this machine, or None."""
    return next(
        filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))), None
    )


def is_native(x: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether native code takes x, of this type on the CPU."""
    return backend_in_use() == "native" and x.device.type == "cpu" and x.dtype == dtype


def address(x: Tensor | None, dtype: torch.dtype, size: int) -> int | None:
    """Return where a tensor of `size` values of this type lies, one value after the other.

    Raises TypeError for any other, as native code would read or write what is not there.
    """
    if x is None:
        return None
    if x.dtype != dtype or x.numel() != size or not x.is_contiguous() or not x.is_cpu:
        raise _refusal(f"{size} contiguous", dtype, x)
    return x.data_ptr()


def addresses(
    tensors: Sequence[Tensor] | None,
    rows: int,
    sizes: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> Array[c_void_p] | None:
    """Return the addresses of all rows of tensors `[rows, n]` of these sizes, row by row.

    The values of a row are contiguous. Raises TypeError for other tensors.
    """
    if tensors is None:
        return None
    firsts, width = [], dtype.itemsize
    for x, n in zip(tensors, sizes, strict=True):
        together = n <= 1 or x.stride(-1) == 1
        if x.dtype != dtype or x.shape != (rows, n) or not together or not x.is_cpu:
            raise _refusal(f"{rows} rows of {n} contiguous", dtype, x)
        firsts.append((x.data_ptr(), x.stride(0) * width))
    return (c_void_p * (rows * len(firsts)))(
        *[place + row * step for row in range(rows) for place, step in firsts]
    )


def addresses_in(x: Tensor, sizes: Sequence[int]) -> Array[c_void_p]:
    """Return the addresses of consecutive parts of rows `[rows, n]` of float32, row by row.

    Raises TypeError as `addresses` does.
    """
    rows = addresses([x], len(x), [sum(sizes)]) or ()
    parts = np.add.outer([row or 0 for row in rows], np.cumsum([0, *sizes[:-1]]) * x.itemsize)
    return (c_void_p * parts.size).from_buffer_copy(parts)


def _refusal(wanted: str, dtype: torch.dtype, x: Tensor) -> TypeError:
    return TypeError(
        f"native code takes {wanted} values of {dtype} on the CPU, and not {x.dtype} of shape "
        f"{tuple(x.shape)} with strides {x.stride()} on {x.device}"
    )


@cache
def load_native() -> CDLL:
    """Return the C++ beside this module as a library, compiled if there is none for this processor.

    Raises RuntimeError if it cannot be compiled or loaded, or others could write to the cache.
    """
    try:
        library = CDLL(str(_find_or_build()))
    except (OSError, ValueError) as error:
        raise RuntimeError(f"the C++ codecs cannot be built: {safe_text(str(error))}") from error
    for name, arguments in _FUNCTIONS.items():
        getattr(library, name).argtypes = [_TYPES[kind] for kind in arguments]
        getattr(library, name).restype = None
    return library


def _find_or_build() -> Path:
    """Return the library in the user's cache, `codecs-KEY-DIGEST.so`.

    The digest in its name tells a whole file from one that a power failure has cut off, which
    would end the process that loads it.
    """
    sources = sorted(Path(__file__).parent.glob("*.cpp"))
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.[ch]*"))]
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError("there is no C++ compiler on this machine; install g++")
    key = repr([texts, compiler, _FLAGS, _processor(), torch.__version__])
    folder = cache_folder("native")
    private_folder(folder, "XDG_CACHE_HOME")
    name = f"codecs-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if found := _find(folder, name):
        return found
    with (folder / "lock").open("w") as lock:
        with suppress(OSError):  # a disk without locks; then each process compiles
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _find(folder, name) or _build(compiler, sources, folder, name)


def _find(folder: Path, name: str) -> Path | None:
    for path in folder.glob(f"{name}-*.so"):
        if path.name == f"{name}-{_digest(path)}.so":
            return path
    return None


def _build(compiler: str, sources: Sequence[Path], folder: Path, name: str) -> Path:
    new = folder / f"{name}.{os.getpid()}.new"
    try:
        _compile(compiler, sources, new)
        with new.open("rb+") as file:
            os.fsync(file.fileno())
        return new.replace(folder / f"{name}-{_digest(new)}.so")
    finally:
        new.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _compile(compiler: str, sources: Sequence[Path], library: Path) -> None:
    # PyTorch's own OpenMP, if it brings one, so that there is one pool of threads.
    openmp = [str(path) for path in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*")]
    command = [compiler, *_FLAGS, *map(str, sources), *openmp, "-Wl,--as-needed"]
    try:
        subprocess.run(
            [*command, "-o", str(library)],
            check=True,
            capture_output=True,
            text=True,
            timeout=COMPILER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"{compiler} took more than {COMPILER_SECONDS} s for the C++ codecs"
        ) from error
    except subprocess.CalledProcessError as error:
        first = next((line for line in error.stderr.splitlines() if "error" in line), error)
        raise RuntimeError(
            f"the C++ codecs do not compile on this machine: {safe_text(str(first))}"
        ) from error


def _processor() -> str:
    """Return what a library built for this processor depends on: a home may be shared."""
    flags = re.search(r"^(flags|Features)\s*:.*$", _read("/proc/cpuinfo"), re.MULTILINE)
    return f"{platform.machine()} {flags[0] if flags else platform.processor()}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
