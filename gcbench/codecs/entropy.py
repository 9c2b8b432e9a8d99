"""Shannon's bound on the length of codes, and an entropy coder that meets it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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

    The coder is `constriction`'s asymmetric numeral systems (Duda 2009). It runs on the CPU, on
    whatever device the codes are.
    """
    weights = (
        (_counts(codes, values).double() * _HEAVIEST / codes.shape[1]).ceil().to(torch.int16).cpu()
    )
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
    import constriction

    rows = []
    for row, weight in zip(words.cpu().numpy().view(np.uint32), weights.cpu().numpy(), strict=True):
        if row.size == 0 or row[0] >= row.size:
            raise ValueError("a row has fewer words than it says")
        if (weight < 0).any():
            raise ValueError("a code has a negative weight")
        coder = constriction.stream.stack.AnsCoder(row[1 : 1 + row[0]])
        rows.append(torch.from_numpy(coder.decode(_model(weight), n)))
    return torch.stack(rows).to(torch.uint8).to(words.device)


def _model(weights: np.ndarray) -> constriction.stream.model.Categorical:
    import constriction

    return constriction.stream.model.Categorical(weights.astype(np.float32), perfect=False)


def _counts(codes: Tensor, values: int) -> Tensor:
    # The code of a NaN may be any byte: counts of bytes that are no codes are dropped.
    return torch.stack([row.bincount(minlength=values)[:values] for row in codes])
