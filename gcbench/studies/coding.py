"""The codes of rows of values, one row per worker."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.compressors import Step, offsets_of
from gcbench.compressors.bucketed import Bucketed


class Coded(NamedTuple):
    """The codes of some rows, and the values that they decode to."""

    codes: Tensor  # [w, n] uint8
    values: Tensor  # [w, n] float32


def code(codec: Bucketed, rows: Tensor, segments: tuple[int, ...], number: int = 0) -> Coded:
    """Return the codes of `[w, n]` rows, and the values that these decode to.

    Each row holds tensors of the sizes `segments`, end to end. `number` is the step, which
    determines the random draws.
    """
    sizes = {str(i): n for i, n in enumerate(segments)}
    step = Step(number, 1, range(len(rows)), offsets_of(sizes))
    noise = step.noise("codec", sizes, rows.device)
    out = torch.zeros_like(rows)
    codec.decode_add(codec.encode(rows, segments, noise), segments, out)
    codes = codec.codes_by(rows, segments, codec.fit_buckets(rows, segments), noise)
    return Coded(codes, out)


def vnmse(values: Tensor, of: Tensor) -> Tensor:
    """Return `|values - of|^2 / |of|^2` of every row of `[w, n]`, in 2-norms, as `[w]`."""
    exact = of.double()
    return (values.double() - exact).square().sum(1) / exact.square().sum(1)
