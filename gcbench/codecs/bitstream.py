"""Bit streams of codes of variable length.

Bit i of a stream is bit i mod 8 of byte i // 8, and the first bit of a code comes first. Places are
bit offsets into the concatenated streams of all rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class BitWriter:
    """A writer of `rows` bit streams of up to `longest` bits each.

    A code is added to the 64-bit word that starts at the last multiple of 32 bits up to its place,
    so that 33 bits fit wherever they start. Codes share no bits, so that adding joins them.
    """

    def __init__(self, rows: int, longest: int, device: torch.device) -> None:
        self._words = torch.zeros(rows, longest // 32 + 2, dtype=torch.int64, device=device)
        self._starts = torch.arange(rows, device=device).unsqueeze(1) * (32 * self._words.shape[1])
        self.ends = self._starts.clone()  # [rows, 1]: where a row's next code goes

    def put(self, codes: Tensor, places: Tensor) -> None:
        """Write codes of up to 33 bits, whose first bit is the lowest, at `places`."""
        self._words.view(-1).scatter_add_(0, places >> 5, codes << (places & 31))

    def streams(self) -> Tensor:
        """Return the streams, zero-padded to uint8 `[rows, bytes of the longest]`."""
        longest = int((self.ends - self._starts).max())
        halves = self._words[:, : longest // 32 + 1].view(torch.int32).unflatten(1, (-1, 2))
        # A copy that keeps the strides of a single column could not be viewed as bytes.
        joined = halves[..., 0].clone(memory_format=torch.contiguous_format)
        joined[:, 1:] |= halves[:, :-1, 1]
        return joined.view(torch.uint8)[:, : (longest + 7) // 8]


class BitReader:
    """A reader of streams `[r, bytes]` at many places at once.

    Up to `beyond` bits past the end of the last stream read as zeros.
    """

    def __init__(self, streams: Tensor, beyond: int) -> None:
        rows, size = streams.shape
        aligned = F.pad(streams, (0, -size % 4))
        # Shape [r, 1].
        self.starts = torch.arange(rows, device=streams.device).unsqueeze(1) * (
            8 * aligned.shape[1]
        )
        self.bytes = size
        self.ends = self.starts + 8 * size
        words = (
            F.pad(aligned.flatten(), (0, 4 * (beyond // 32 + 2))).view(torch.int32).to(torch.int64)
            & 0xFFFFFFFF
        )
        self._words = words[:-1] | (words[1:] << 32)

    def window(self, places: Tensor) -> Tensor:
        """Return the 33 bits from each place on, the first one lowest. Ignore higher bits."""
        return self._words.index_select(0, places >> 5) >> (places & 31)
