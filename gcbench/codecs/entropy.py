"""Shannon's bound on the length of codes, and an entropy coder that meets it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gcbench.codecs.native import address, is_native, load_native

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
        of_codes = address(codes), *codes.shape, address(shares), values
        load_native().ans_encode(*of_codes, address(words), longest, torch.get_num_threads())
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
        of_words = address(words), len(words), n, address(shares), weights.shape[1]
        longest, threads = words.shape[1], torch.get_num_threads()
        load_native().ans_decode(*of_words, address(codes), longest, threads)
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
