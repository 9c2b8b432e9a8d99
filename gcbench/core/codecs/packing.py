"""Codes packed into bytes: of 1 to 8 bits at their width, in lanes of sums, and at their entropy.

Every eight codes of b bits take b bytes, the first code lowest. On a CPU native code does all of
it, each in one pass, with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.native import address, is_native, load_native

_TOGETHER = 4  # how many messages are unpacked at once


def width_of(values: int) -> int:
    """Return the number of bits in a code of `values` different values."""
    return (values - 1).bit_length()


def packed_bytes(n: int, width: int) -> int:
    return n if width == 8 else width * ((n + 7) // 8)


def pack(codes: Tensor, width: int) -> Tensor:
    """Return uint8 codes `[w, n]` below 2^width packed into uint8 `[w, packed_bytes(n, width)]`."""
    if width == 8:
        return codes
    if is_native(codes, torch.uint8):
        n = codes.shape[1]
        return pack_native(codes, n, packed_bytes(n, width), 1 << width, (1, width))
    return bytes_of(_join_numbers(F.pad(codes, (0, -codes.shape[1] % 8)), width), width)


def unpack(packed: Tensor, n: int, width: int) -> Tensor:
    """Return uint8 codes `[w, n]`: the inverse of `pack`."""
    if width == 8:
        return packed[:, :n]
    if is_native(packed, torch.uint8):
        return pack_native(packed, n, packed_bytes(n, width), 1 << width, (1, width), back=True)
    return _part_numbers(packed, width)[:, :n]


def majority(signs: Tensor, n: int) -> Tensor:
    """Return the signs `[1, n]` of sums of the signs in packed rows: 1 for +1, and 0 for -1."""
    if is_native(signs, torch.uint8):
        signs, out = signs.contiguous(), torch.empty(1, n, dtype=torch.float32)
        load_native().majority(
            *(address(signs, torch.uint8, len(signs) * packed_bytes(n, 1)), len(signs), n),
            *(address(out, torch.float32, n), torch.get_num_threads()),
        )
        return out
    total = torch.zeros((), dtype=torch.int32, device=signs.device)
    for some in signs.split(_TOGETHER):
        total = total + unpack(some, n, 1).sum(0, keepdim=True, dtype=torch.int32)
    return (2 * total - len(signs)).sign().to(torch.float32)


def pack_native(
    x: Tensor, n: int, size: int, base: int, word: tuple[int, int], back: bool = False
) -> Tensor:
    """Return rows of n codes packed into `size` bytes, or with `back` unpacked.

    The codes are digits of a base, as many as `word` has in its number of bits.
    """
    here, there = (size, n) if back else (n, size)
    x, out = x.contiguous(), torch.empty(len(x), there, dtype=torch.uint8)
    load_native().pack(
        *(address(x, torch.uint8, len(x) * here), len(x), n, size, base, *word, back),
        *(address(out, torch.uint8, len(x) * there), torch.get_num_threads()),
    )
    return out


def join_numbers(codes: Tensor, width: int) -> Tensor:
    """Return codes `[w, n]`, n a multiple of 8, in words `[w, words]` of as many as fill bytes."""
    if width == 8:
        return codes.to(torch.uint8)
    together = 8 // math.gcd(8, width)
    bits = width * together
    dtype = torch.int32 if bits <= 31 else torch.int64
    word, *others = codes.to(dtype).unflatten(1, (-1, together)).unbind(2)
    for k, code in enumerate(others, start=1):
        word = word | code << (width * k)
    return word.to(torch.uint8) if bits == 8 else word


_join_numbers = kernel(join_numbers)


def bytes_of(words: Tensor, width: int) -> Tensor:
    """Return the bytes `[w, bytes]` of words of codes."""
    used = width // math.gcd(8, width)
    return words.view(torch.uint8).unflatten(1, (-1, words.itemsize))[..., :used].flatten(1)


def part_numbers(packed: Tensor, width: int) -> Tensor:
    """Return codes `[w, n]`, uint8, of packed rows: the inverse of `pack`, up to whole bytes."""
    if width == 8:
        return packed
    together = 8 // math.gcd(8, width)
    words, used = packed.unsqueeze(2), width * together // 8
    if used > 1:
        first, *others = packed.to(torch.int64).unflatten(1, (-1, used)).unbind(2)
        for k, byte in enumerate(others, start=1):
            first = first | byte << (8 * k)
        words = first.unsqueeze(2)
    shifts = torch.arange(0, width * together, width, dtype=words.dtype, device=packed.device)
    return (words >> shifts & ((1 << width) - 1)).to(torch.uint8).flatten(1)


_part_numbers = kernel(part_numbers)


def lanes_of(bits: int) -> int:
    """Return how many lanes of `bits` a 64-bit word holds."""
    return 64 // bits


def pack_lanes(codes: Tensor, bits: int) -> Tensor:
    """Return codes `[w, n]` packed into int64 words whose lanes have room for sums of the words.

    The layout is planar, for shifts of contiguous planes: with m words, the codes j, j + m,
    j + 2 m, ... share word j. The caller chooses `bits` so that no sum over all workers reaches
    2^bits; then no lane carries over into the next.
    """
    lanes = lanes_of(bits)
    planes = F.pad(codes, (0, -codes.shape[1] % lanes)).unflatten(1, (lanes, -1))
    return _join_lanes(planes, bits)


def unpack_lanes(words: Tensor, n: int, bits: int) -> Tensor:
    """Return the codes, or sums, in words of `pack_lanes`, `[r, words] -> [r, n]` int32."""
    return _part_lanes(words, bits).flatten(1)[:, :n]


@kernel
def _join_lanes(planes: Tensor, bits: int) -> Tensor:
    """Return planes `[w, lanes, words]` packed side by side into words `[w, words]`."""
    words = planes[:, 0].to(torch.int64)
    for k in range(1, planes.shape[1]):
        words = words | planes[:, k].to(torch.int64) << (bits * k)
    return words


@kernel
def _part_lanes(words: Tensor, bits: int) -> Tensor:
    """Return int32 planes `[r, lanes, words]`: the inverse of `_join_lanes`."""
    shifts = torch.arange(lanes_of(bits), dtype=torch.int64, device=words.device) * bits
    planes = (words.unsqueeze(1) >> shifts.unsqueeze(1)) & ((1 << bits) - 1)
    return planes.to(torch.int32)


Spans = NDArray[np.int64]
"""Rows of a first value, how many values share a unit, and the number of the first unit."""

ONE_SPAN = np.array([[0, 1 << 62, 0]])
EACH_VALUE = np.array([[0, 1, 0]])


class Units(NamedTuple):
    """The factors of centered codes, whose values are `code / half * unit / divisor`."""

    half: float
    unit: Tensor
    divisor: Tensor  # as many as units
    spans: Spans


def sum_of_codes(
    codes: Tensor,
    bits: int,
    most: int,
    add: Callable[[Tensor], Tensor],
    units: Units,
    values: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the values `[1, n]` of the sum of all workers' codes, of which no sum exceeds `most`.

    `add` sends words and returns their sum. `values` returns what centered sums stand for, and is
    not called where native code does the same by `units`.
    """
    n, lanes = codes.shape[1], lanes_of(bits)
    if not is_native(units.unit):
        return values(_around_zero(unpack_lanes(add(pack_lanes(codes, bits)), n, bits), most))
    count = -(-n // lanes)
    words = torch.empty(len(codes), count, dtype=torch.int64)
    threads, codes = torch.get_num_threads(), codes.contiguous()
    kind = torch.uint8 if codes.dtype == torch.uint8 else torch.int16
    for row, out in zip(codes, words, strict=True):
        load_native().pack_lanes(
            *(address(row, kind, n), kind.itemsize, n, bits, count),
            *(address(out, torch.int64, count), threads),
        )
    total, result = add(words).contiguous(), torch.empty(1, n, dtype=torch.float32)
    unit, divisor = units.unit.contiguous(), units.divisor.contiguous()
    load_native().lane_values(
        *(address(total, torch.int64, count), n, bits, count, most, units.half, len(units.spans)),
        *(units.spans.ctypes.data, address(unit, torch.float32, unit.numel())),
        address(divisor, torch.float32, unit.numel()),
        *(address(result, torch.float32, n), threads),
    )
    return result


@kernel
def _around_zero(total: Tensor, highest: int) -> Tensor:
    # In integers until the last division: float32 cannot represent odd numbers above 2^24.
    return (2 * total - highest).to(torch.float32) / 2


if TYPE_CHECKING:  # imported where it is used, as a machine for other codes need not have it
    import constriction

_HEAVIEST = 32767  # the largest weight; weights stand for counts in 16 bits


def shannon_bits(codes: Tensor, values: int) -> Tensor:
    """Return Shannon's bound in bits for each row of codes below `values`, `[w, n] -> [w]` float64.

    It is sum_k d_k log2(d / d_k) for d codes, d_k of which are k. No code in which each k takes the
    same number of bits everywhere, whole or fractional, is shorter.
    """
    counts = _counts(codes, values).double()
    return -torch.xlogy(counts, counts / codes.shape[1]).sum(1) / math.log(2)


def encode_ans(codes: Tensor, values: int) -> tuple[Tensor, Tensor]:
    """Return the compressed words of uint8 codes `[w, n]`, and the model that decoding needs.

    The words are int32 `[w, longest]`; the first word of a row says how many follow. The model,
    int16 `[w, values]`, holds the frequency of each code in units of 1/32767, rounded up.

    The coder is `constriction`'s asymmetric numeral systems (Duda 2009), in native code or its own.
    It runs on the CPU, on whatever device the codes are.
    """
    weights = (
        (_counts(codes, values).double() * _HEAVIEST / codes.shape[1]).ceil().to(torch.int16).cpu()
    )
    if is_native(codes, torch.uint8):
        codes, n, shares = codes.contiguous(), codes.shape[1], _cumulative(weights)
        longest = (24 * n + 31) // 32 + 3  # a code takes up to 24 bits
        words = torch.empty(len(codes), longest, dtype=torch.int32)
        load_native().ans_encode(
            *(address(codes, torch.uint8, codes.numel()), *codes.shape),
            *(address(shares, torch.int32, len(codes) * (values + 1)), values),
            *(address(words, torch.int32, words.numel()), longest, torch.get_num_threads()),
        )
        for row in words:
            row[1 + int(row[0]) :] = 0
        return words[:, : 1 + int(words[:, 0].max())], weights
    import constriction

    rows = []
    for row, weight in zip(codes.to(torch.int32).cpu().numpy(), weights.numpy(), strict=True):
        coder = constriction.stream.stack.AnsCoder()
        coder.encode_reverse(row, _model(weight))
        words = coder.get_compressed()
        rows.append(
            torch.from_numpy(np.concatenate([[words.size], words]).astype(np.uint32).view(np.int32))
        )
    return pad_sequence(rows, batch_first=True).to(codes.device), weights.to(codes.device)


def decode_ans(words: Tensor, weights: Tensor, n: int) -> Tensor:
    """Return uint8 codes `[r, n]`: the inverse of `encode_ans`.

    Raises ValueError for words or a model that no encoder writes.
    """
    counts = words[:, :1]
    if words.shape[1] == 0 or bool(((counts < 0) | (counts >= words.shape[1])).any()):
        raise ValueError("a row has fewer words than it says")
    if bool((weights < 0).any() | (weights.sum(1) == 0).any()):
        raise ValueError("a code has a negative weight, or none has any")
    if is_native(words, torch.int32):
        if bool(((counts > 0) & (words.gather(1, counts.long()) == 0)).any()):
            raise ValueError("the last word of a row is 0")
        words, shares = words.contiguous(), _cumulative(weights)
        codes = torch.empty(len(words), n, dtype=torch.uint8)
        values, longest = weights.shape[1], words.shape[1]
        load_native().ans_decode(
            *(address(words, torch.int32, words.numel()), len(words), n),
            *(address(shares, torch.int32, len(words) * (values + 1)), values),
            *(address(codes, torch.uint8, codes.numel()), longest, torch.get_num_threads()),
        )
        return codes
    import constriction

    rows = []
    for row, weight in zip(words.cpu().numpy().view(np.uint32), weights.cpu().numpy(), strict=True):
        coder = constriction.stream.stack.AnsCoder(row[1 : 1 + row[0]])
        rows.append(torch.from_numpy(coder.decode(_model(weight), n)))
    return torch.stack(rows).to(torch.uint8).to(words.device)


def _cumulative(weights: Tensor) -> Tensor:
    """Return the sums `[w, values + 1]`, int32, of shares of 2^24 that the coder makes of weights.

    Each code has a share of at least 1. Sums are float32 ones, in order, as in `_model`.
    """
    values = weights.shape[1]
    below = np.zeros((len(weights), values + 1), dtype=np.float32)
    below[:, 1:] = np.cumsum(weights.numpy(), axis=1, dtype=np.float32)
    scale = np.float32((1 << 24) - values) / below[:, -1:]
    sums = (below * scale).astype(np.int32) + np.arange(values + 1, dtype=np.int32)
    sums[:, -1] = 1 << 24
    return torch.from_numpy(sums)


def _model(weights: np.ndarray) -> constriction.stream.model.Categorical:
    import constriction

    return constriction.stream.model.Categorical(weights.astype(np.float32), perfect=False)


def _counts(codes: Tensor, values: int) -> Tensor:
    # The code of a NaN may be any byte: counts of bytes that are no codes are dropped.
    return torch.stack([row.bincount(minlength=values)[:values] for row in codes])
