"""Tensors as the bytes of one message, and floats as integers of the same order, and back."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

Part = tuple[slice, torch.dtype, torch.Size]
"""The place of a tensor in a row of bytes, its type and its shape."""


def as_bytes(x: Tensor) -> Tensor:
    """Return the bytes of `x`, copied where it is not contiguous."""
    return x.contiguous().view(torch.uint8)


def to_bytes(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Part]]:
    """Return `[w, ...]` tensors concatenated as `[w, bytes]`, and the place of each."""
    rows = [as_bytes(t.reshape(t.shape[0], -1)) for t in tensors]
    parts, start = [], 0
    for t, row in zip(tensors, rows, strict=True):
        parts.append((slice(start, start + row.shape[1]), t.dtype, t.shape[1:]))
        start += row.shape[1]
    return (rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)), parts


def from_bytes(everyone: Tensor, part: Part) -> Tensor:
    """Return the tensor at `part` of every row, `[W, bytes] -> [W, ...]`."""
    where, dtype, shape = part
    columns = everyone[:, where]
    if dtype != torch.uint8:  # a view as a wider type needs aligned rows
        columns = columns.clone(memory_format=torch.contiguous_format).flatten().view(dtype)
    return columns.reshape(len(everyone), *shape)


def pad_rows(rows: list[Tensor], starts: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """Return one tensor of every row's message, zero-padded to `[W, longest]`.

    `starts` are in bytes, `lengths` in values.
    """
    out = torch.zeros(len(rows), int(lengths.max()), dtype=dtype, device=rows[0].device)
    for row, target, start, n in zip(rows, out, starts.tolist(), lengths.tolist(), strict=True):
        target[:n] = row[start : start + n * dtype.itemsize].clone().view(dtype)
    return out


_NAN = 0x7FC00000
_MAGNITUDE = 0x7FFFFFFF


def float_to_ordered(x: Tensor, nan_is_largest: bool) -> Tensor:
    """Return int32 numbers in the order of the float32 values, with NaN above or below all others.

    The bits of non-negative floats already rise with their value; those of negative ones fall, and
    are flipped. Raises TypeError for other types than float32.
    """
    if x.dtype != torch.float32:
        raise TypeError(
            f"a maximum or minimum over workers takes float32 values, not {x.dtype}; type x.float()"
        )
    bits = torch.where(x.isnan(), _NAN if nan_is_largest else _NAN - (1 << 31), x.view(torch.int32))
    return bits ^ ((bits >> 31) & _MAGNITUDE)


def ordered_to_float(ordered: Tensor) -> Tensor:
    """Return float32 values: the inverse of `float_to_ordered`."""
    return (ordered ^ ((ordered >> 31) & _MAGNITUDE)).view(torch.float32)


SUM_BYTES = 4  # of a CRC-32


class MessageAltered(RuntimeError):
    """A message did not arrive as it was sent."""


def row_sums(tensors: Sequence[Tensor], lengths: Sequence[Tensor | None] | None = None) -> Tensor:
    """Return the checksum of each row of `[w, ...]` tensors, `[w, 4]` bytes.

    Trailing zeros do not count, since ragged rows are padded to the length of the longest.
    """
    lengths = lengths or [None] * len(tensors)
    trimmed = [_zero_behind_end(t, n) for t, n in zip(tensors, lengths, strict=True)]
    columns = [as_bytes(t.reshape(t.shape[0], -1)).cpu().numpy() for t in trimmed]
    sums = []
    for rows in zip(*columns, strict=True):
        crc = 0
        for row in rows:
            crc = zlib.crc32(row.tobytes().rstrip(b"\0"), crc)
        sums.append(list(crc.to_bytes(SUM_BYTES, "little")))
    return torch.tensor(sums, dtype=torch.uint8, device=tensors[0].device)


def pair_sums(tensors: Sequence[Tensor]) -> Tensor:
    """Return the checksum of each pair's part of `[w, W, ...]` tensors, `[w, W, 4]` bytes."""
    return row_sums([t.flatten(0, 1) for t in tensors]).unflatten(0, tensors[0].shape[:2])


def _zero_behind_end(x: Tensor, length: Tensor | None) -> Tensor:
    """Return rows with zeros past their lengths, as receivers get them."""
    if length is None:
        return x
    behind = torch.arange(x[0].numel(), device=x.device) >= length.unsqueeze(1)
    return x.flatten(1).masked_fill(behind, 0)


def refuse_altered(collective: str, arrived: Tensor, sent: Tensor, receiver: int) -> None:
    """Raise MessageAltered if checksums `[W, 4]` are not those sent, naming the senders."""
    same = (arrived == sent).all(1).tolist()
    wrong = [worker for worker, is_same in enumerate(same) if not is_same]
    if wrong:
        raise MessageAltered(
            f"{collective}: what {_names(wrong)} sent arrived altered at worker {receiver}"
        )


def refuse_different(op: str, sums: Tensor) -> None:
    """Raise MessageAltered if the checksums `[W, 4]` of a reduction's results differ."""
    if difference := disagreement([(*row,) for row in sums.tolist()]):
        raise MessageAltered(f"all_reduce ({op}) gave {difference}")


def disagreement(sums: Sequence[Hashable]) -> str | None:
    """Return which workers differ from the majority, or that none exists; None if all agree."""
    right, times = Counter(sums).most_common(1)[0]
    wrong = [worker for worker, its_sum in enumerate(sums) if its_sum != right]
    if not wrong:
        return None
    if 2 * times > len(sums):
        return f"{_names(wrong)} a different result than worker {sums.index(right)}"
    everyone = f"{_names(wrong)} and worker {sums.index(right)}"
    return f"{everyone} different results, and no majority shows which is right"


def _names(workers: Sequence[int]) -> str:
    return f"worker{'s' * (len(workers) > 1)} {', '.join(map(str, workers))}"
