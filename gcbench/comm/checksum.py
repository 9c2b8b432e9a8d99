"""Checksums of messages, which detect an altered bit and name the worker that sent it.

A CRC-32 goes with every message: 32 more bits per worker for a gather, per pair of workers for an
all-to-all, and per worker for the result of a reduction. Every bit of a gather or an all-to-all is
covered. The result of a reduction is not what was sent: the workers compare their results, so that
a bit altered before all of them got the same sum goes unnoticed. On GPUs every message is copied to
the host.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from gcbench.comm.messages import as_bytes

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
