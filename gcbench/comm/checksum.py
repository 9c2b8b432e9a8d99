"""Messages that say what they should be: an altered bit is found, and named by who sent it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from gcbench.comm.base import Clock, Comm, Reduction
from gcbench.comm.messages import as_bytes


class MessageAltered(RuntimeError):
    """What did not arrive as it was sent."""


class ChecksumComm(Comm):
    """`inner` with a CRC-32 beside everything: 32 bits more a worker for what is gathered, a pair of workers for what is
    transposed, and a worker for the result of a reduction.

    Covers every bit of a gathered or transposed message. A reduction gives other bits than were sent: its results are
    compared among the workers, so a bit altered before all got the same sum is not seen. On GPUs every message is copied to
    the host.
    """

    def __init__(self, inner: Comm) -> None:
        self._inner = inner
        super().__init__(inner.workers, inner.local, inner.clock, inner.meter)
        self.workers_per_host = inner.workers_per_host

    def gather(self, tensors: Sequence[Tensor], lengths: Sequence[Tensor | None] | None = None) -> list[Tensor]:
        ragged = lengths or [None] * len(tensors)
        own = [_true_part(t, n) for t, n in zip(tensors, ragged, strict=True)]
        *everyone, sums = super().gather([*tensors, _row_sums(own)], [*ragged, None])
        self._refuse(_row_sums(everyone), sums, "all_gather")
        return everyone

    def transpose(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        w, pair = len(self.local), (len(self.local), self.workers)
        *arrived, sums = super().transpose([*tensors, _row_sums([t.flatten(0, 1) for t in tensors]).unflatten(0, pair)])
        found = _row_sums([t.flatten(0, 1) for t in arrived]).unflatten(0, pair)
        for row in range(w):
            self._refuse(found[row], sums[row], "all_to_all")
        return arrived

    def _reduce(self, tensors: Sequence[Tensor], op: Reduction) -> Tensor:
        flat = super()._reduce(tensors, op)
        (sums,) = super().gather([_row_sums([flat]).expand(len(self.local), -1)])
        if said := disagreement([(*row,) for row in sums.tolist()]):
            raise MessageAltered(f"all_reduce ({op}) gave {said}")
        return flat

    def _refuse(self, found: Tensor, sums: Tensor, collective: str) -> None:
        wrong = [worker for worker, same in enumerate((found == sums).all(1).tolist()) if not same]
        if wrong:
            raise MessageAltered(f"{collective}: what {_names(wrong)} sent arrived altered at worker {self.local.start}")

    @property
    def clock(self) -> Clock:
        return self._inner.clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self._inner.clock = clock

    def split(self, size: int) -> tuple[list[Comm], Comm]:
        inside, between = self._inner.split(size)
        return [ChecksumComm(node) for node in inside], ChecksumComm(between)

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        self._inner._all_reduce(flat, op)

    def _all_gather(self, message: Tensor) -> Tensor:
        return self._inner._all_gather(message)

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        return self._inner._all_to_all(by_process)

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        return self._inner._exchange_rows(rows, row_bytes)


def _true_part(x: Tensor, length: Tensor | None) -> Tensor:
    """With zeros behind each row's end, as its copies have them."""
    if length is None:
        return x
    behind = torch.arange(x[0].numel(), device=x.device) >= length.unsqueeze(1)
    return x.flatten(1).masked_fill(behind, 0)


def _row_sums(tensors: Sequence[Tensor]) -> Tensor:
    """`[w, ...]` tensors to `[w, 4]` bytes. Zeros at the end do not count: a ragged row has as many as the longest needs."""
    sums = []
    for rows in zip(*(as_bytes(t.reshape(t.shape[0], -1)).cpu().numpy() for t in tensors), strict=True):
        found = 0
        for row in rows:
            found = zlib.crc32(row.tobytes().rstrip(b"\0"), found)
        sums.append(list(found.to_bytes(4, "little")))
    return torch.tensor(sums, dtype=torch.uint8, device=tensors[0].device)


def disagreement(found: Sequence[Hashable]) -> str | None:
    """Which workers found other than most did; where no more than half agree, nobody can say who is wrong."""
    right, times = Counter(found).most_common(1)[0]
    wrong = [worker for worker, its in enumerate(found) if its != right]
    if not wrong:
        return None
    if 2 * times > len(found):
        return f"{_names(wrong)} other bits than worker {found.index(right)}"
    return f"{_names(wrong)} and worker {found.index(right)} different bits; which are the right ones cannot be told"


def _names(workers: Sequence[int]) -> str:
    return f"worker{'s' * (len(workers) > 1)} {', '.join(map(str, workers))}"
