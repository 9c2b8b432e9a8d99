"""EDEN beside the forms of TurboQuant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import vnmse
from gcbench.core.wrappers.virtual import aggregate
from gcbench.papers.studies.study import Row, Study, compressor

LAWS = {"normal": 1, "cubes": 3}  # powers of normal values


@dataclass(frozen=True, kw_only=True)
class Turboquant(Study):
    """vNMSE of EDEN beside TurboQuant's forms: Ben-Basat et al. (arXiv 2604.18555), 2026.

    Codes `vectors` vectors of `dimension` normal values, and of their cubes, each in a rotation of
    its own. `unbiased` and `biased` are EDEN with these scales; `mse` is TurboQuant_mse, EDEN with
    scale=rms; `prod` is TurboQuant_prod: mse of b - 1 bits, and QJL of what that leaves, with one
    bit QJL alone; `chain` has EDEN's unbiased bit in place of QJL's. `vnmse` has the mean over the
    vectors for each of `draws`, `of_mse` the error of all relative to that of `mse`, and
    `worst_of_mse` the largest such ratio of a vector. Takes some seconds.
    """

    dimension: int = 128
    vectors: int = 512
    draws: int = 10
    bits: Sequence[int] = (1, 2, 3, 4)

    def rows(self) -> Iterator[Row]:
        for law, power in LAWS.items():
            for bits in self.bits:
                found: dict[str, list[Tensor]] = {}
                for draw in range(self.draws):
                    generator = torch.Generator().manual_seed(draw)
                    x = torch.randn(self.vectors, self.dimension, generator=generator) ** power
                    for form, sent in _forms(x, bits, draw).items():
                        found.setdefault(form, []).append(vnmse(sent, x))
                for form, errors in found.items():
                    every, of = torch.stack(errors), torch.stack(found["mse"])
                    yield {
                        "row": f"{form}_{bits}",
                        "table": law,
                        "vnmse": every.mean(1).tolist(),
                        "of_mse": float(every.sum() / of.sum()),
                        "worst_of_mse": float((every / of).max()),
                    }


def _forms(x: Tensor, bits: int, draw: int) -> dict[str, Tensor]:
    """Return what each form sends of the rows of x."""
    forms = {
        scale: _eden(x, bits, name, draw)
        for scale, name in (("unbiased", "unbiased"), ("biased", "biased"), ("mse", "rms"))
    }
    first = _eden(x, bits - 1, "rms", draw) if bits > 1 else torch.zeros_like(x)
    forms["prod"] = first + _qjl(x - first, draw)
    if bits > 1:
        forms["chain"] = first + _eden(x - first, 1, "unbiased", -1 - draw)
    return forms


def _eden(x: Tensor, bits: int, scale: str, number: int) -> Tensor:
    method = compressor("eden", f"bits={bits}", f"scale={scale}", f"bucket_size={x.shape[1]}")
    sent = aggregate(method, {"x": x.reshape(1, -1)}, number=number, comm=Comm(1)).sent()
    return sent["x"].view_as(x)


def _qjl(x: Tensor, seed: int) -> Tensor:
    """Return sqrt(pi / 2) |x| S^T sign(S x) / d, unbiased estimates by signs of d projections.

    This is the second stage of TurboQuant_prod (Zandieh et al., 2025, definition 1).
    """
    d = x.shape[1]
    sketch = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    signs = torch.where(x.double() @ sketch.T >= 0, 1.0, -1.0).double()
    lengths = x.double().norm(dim=1, keepdim=True)
    return ((math.pi / 2) ** 0.5 / d * lengths * (signs @ sketch)).float()
