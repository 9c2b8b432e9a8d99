"""Launches of hand-written Triton (`triton_kernels.py`), which only a GPU's path imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcbench.core.codecs import kernels

PIECE = 4096  # values of a tensor that a program takes, but for buckets that it fits
_WARP_VALUES = 512  # values that 32 threads take
_INT, _BOOL = (torch.empty(0, dtype=dtype) for dtype in (torch.int64, torch.bool))


class Launch(NamedTuple):
    """A launch of the kernel of a name, and the tensors that it reads and writes."""

    name: str
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]
    reads: Sequence[Tensor]
    writes: Sequence[Tensor]

    @property
    def values(self) -> int:
        """Return how many values it takes, by which launches of a kernel are told apart."""
        floats = sum(x.numel() for x in self.writes if x.dtype == torch.float32)
        return max(floats, *(x.numel() for x in [*self.reads, *self.writes]))

    @property
    def options(self) -> dict[str, Any]:
        """Return how Triton compiles it: no product is added without rounding it first."""
        sides = [n for name, n in self.constants.items() if name in ("BLOCK", "ROWS", "COLUMNS")]
        warps = min(max(prod(sides) // _WARP_VALUES, 1), 32)
        return {"num_warps": warps, "enable_fp_fusion": False}


Observer = Callable[[Launch], None]
_observer: Observer | None = None


@contextmanager
def observe_launches(observer: Observer) -> Iterator[None]:
    """Call `observer` in place of every launch in this context, whose tensors may be fake."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before


def is_fused(x: Tensor) -> bool:
    """Return whether hand-written Triton takes x: float32 on a GPU, where codecs are compiled."""
    return x.dtype == torch.float32 and runs_on(x.device)


def runs_on(device: torch.device) -> bool:
    """Return whether hand-written Triton runs on this device."""
    if device.type != "cuda" or _observer is not None:
        return device.type == "cuda"
    if kernels.backend_in_use() != "compiled":
        return False
    try:
        _compile_one()
    except Exception as error:  # from two compilers, each with errors of its own
        kernels.fall_back(error)
        return False
    return True


@cache
def _compile_one() -> None:
    """Compile a kernel, as others are compiled where it is too late for eager code."""
    compile_launch(Launch("blank_each", (1, 1), (_INT, _INT, _BOOL, 1), {"BLOCK": PIECE}, (), ()))


def compile_launch(call: Launch) -> None:
    """Compile a kernel for a launch with tensors like these, which may be fake."""
    from triton.runtime.jit import MockTensor

    from gcbench.core.codecs import triton_kernels

    args = [MockTensor(x.dtype) if isinstance(x, Tensor) else x for x in call.args]
    function = getattr(triton_kernels, call.name)
    function.warmup(*args, grid=call.grid, **call.constants, **call.options)


def launch(
    name: str,
    grid: tuple[int, ...],
    *args: Any,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    **constants: Any,
) -> None:
    """Run the kernel of this name; `reads` and `writes` say what it moves, for an observer."""
    if not all(grid):
        return
    call = Launch(name, grid, args, constants, reads, writes)
    if _observer is not None:
        _observer(call)
        return
    from gcbench.core.codecs import triton_kernels

    with torch.cuda.device_of(reads[0]):  # Triton takes the current device
        getattr(triton_kernels, name)[grid](*args, **constants, **call.options)


def pointers(tensors: Sequence[Tensor]) -> Tensor:
    """Return the addresses `[w, tensors]` of all rows of tensors `[w, n]`, as a table on the GPU.

    The values of a row are contiguous. Where tensors lie where some lay before, as gradients do in
    every step, there is nothing to copy to the GPU; and the host never waits for a copy.
    """
    first = tensors[0]
    assert all(x.shape[1] <= 1 or x.stride(1) == 1 for x in tensors)
    if _observer is not None:
        return first.new_empty(len(first), len(tensors), dtype=torch.int64)
    firsts = [(x.data_ptr(), x.stride(0) * x.itemsize) for x in tensors]
    rows = tuple([place + row * step for row in range(len(first)) for place, step in firsts])
    stream = torch.cuda.current_stream(first.device).cuda_stream if first.is_cuda else 0
    return _table(rows, first.device, stream)[1]


@lru_cache(maxsize=1024)
def _table(places: tuple[int, ...], device: torch.device, _stream: int) -> tuple[Tensor, Tensor]:
    # The first one is kept, as a captured CUDA graph copies it again.
    table = torch.tensor(places, dtype=torch.int64, pin_memory=device.type == "cuda")
    return table, table.to(device, non_blocking=True)


class Pieces(NamedTuple):
    """The pieces of tensors that programs take."""

    table: Tensor  # [pieces, 7]: of each what `triton_kernels.py` says
    ends: Tensor  # [buckets + 1]: the number of the first piece of each bucket, and of all
    number: int
    block: int  # a power of two that is not below their lengths


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def pieces_of(
    sizes: tuple[int, ...],
    device: torch.device,
    bucket_size: int | None = None,
    most: int = PIECE,
    least: int = 0,
) -> Pieces:
    """Return pieces of up to `most` values of tensors in buckets, or of one bucket each.

    If it is given, pieces are filled up to a power of two from `least` on.
    """
    columns, place, bucket = [], 0, 0
    for tensor, n in enumerate(sizes):
        size = bucket_size or max(n, 1)
        first = np.arange(0, n, size)
        starts = (first[:, None] + np.arange(0, size, most)).flatten()
        starts = starts[starts < n]
        ends = np.minimum(np.minimum(starts + most, (starts // size + 1) * size), n)
        buckets = bucket + starts // size
        columns.append([starts * 0 + tensor, starts, ends - starts, buckets, place + starts])
        place, bucket = place + n, bucket + len(first)
    table = np.concatenate(columns, axis=1)
    filled = table[2] if not least else np.maximum(1 << _bits(table[2] - 1), least)
    table = np.stack([*table, filled, filled.cumsum() - filled])
    ends = np.searchsorted(table[3], np.arange(bucket + 1))
    block = 1 << int(_bits(filled - 1).max(initial=0))
    places, firsts = (torch.tensor(x, device=device) for x in (table.T.copy(), ends))
    return Pieces(places, firsts, table.shape[1], block)


def _bits(x: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bits whole numbers below 2^52 have."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def replace_each(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Replace values `[1, n]` each; return for each piece whether one was or is not finite."""
    pieces = _whole_pieces(tensors)
    found = tensors[0].new_empty(pieces.number, dtype=torch.bool)
    launch(
        "replace_each",
        (pieces.number, 1),
        *(pointers(tensors), pointers(others), pieces.table, found, len(tensors)),
        reads=[*tensors, *others, pieces.table],
        writes=[*tensors, found],
        BLOCK=pieces.block,
    )
    return found


def launch_if(bad: Tensor, name: str, *tensors: Sequence[Tensor]) -> None:
    """Run a kernel on values `[1, n]` each that does something only if `bad`, `[1]`, is true."""
    pieces = _whole_pieces(tensors[0])
    launch(
        name,
        (pieces.number, 1),
        *(*map(pointers, tensors), pieces.table, bad, len(tensors[0])),
        reads=[bad],
        writes=[],
        BLOCK=pieces.block,
    )


def _whole_pieces(tensors: Sequence[Tensor]) -> Pieces:
    return pieces_of(tuple([x.shape[1] for x in tensors]), tensors[0].device)
