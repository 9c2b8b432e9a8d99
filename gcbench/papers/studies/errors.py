"""Errors of methods by the bits that they send, for several laws and for recorded gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Grads, flatten
from gcbench.core.wrappers.virtual import aggregate
from gcbench.papers.studies.gradients import OnRealGradients, vnmse
from gcbench.papers.studies.study import Row, Study, compressor

DEFAULT = (
    *(f"qsgd min_size=0 bits={b} bucket_size={d}" for b, d in ((2, 64), (3, 128), (4, 512))),
    *(f"orq level_count={count}" for count in (3, 5, 9, 17)),
    *(f"qsgd rotate=hadamard min_size=0 bits={bits}" for bits in (2, 3, 4)),
    *(f"eden bits={bits}" for bits in (1, 2, 3, 4)),
    "natural",
    *("mxfp4", "nvfp4", "mxfp6", "mxfp8"),
)
# Keys that only say how many bits are sent, or of what: points of one line.
AMOUNTS = ("bits", "bucket_size", "level_count", "min_size", "fraction", "rank", "error_feedback")


@dataclass(frozen=True, kw_only=True)
class ErrorByBits(OnRealGradients):
    """vNMSE, |Q(v) - v|^2 / |v|^2, by bits per value: Vargaftik et al. (EDEN), 2022, section 5.

    Codes `values` values of each law, and the gradients of the first step of every recorded window,
    by each of `methods`: names of `gcbench methods` with keys, separated by semicolons. All tensors
    are compressed, and no residual is added. Columns are means over 3 draws, or over the recorded
    steps and workers. Takes a minute, and three more if no gradients are recorded yet.
    """

    methods: str = "; ".join(DEFAULT)
    values: int = 131072  # of each law

    def rows(self) -> Iterator[Row]:
        laws = self._laws()
        for typed in self.methods.split(";"):
            name, *knobs = typed.split()
            kind = [name, *(knob for knob in knobs if knob.partition("=")[0] not in AMOUNTS)]
            for law, steps in laws.items():
                measured = [_measure(name, knobs, grads, step) for step, grads in steps]
                bits, error = (
                    sum(column) / len(measured) for column in zip(*measured, strict=True)
                )
                yield {
                    "row": f"{typed.strip()}, {law}",
                    "method": name,
                    "line": " ".join(kind),
                    "law": law,
                    "bits_per_value": bits,
                    "vnmse": error,
                }

    def _laws(self) -> dict[str, list[tuple[int, Grads]]]:
        """Return steps and their gradients, by law."""
        found: dict[str, list[tuple[int, Grads]]] = {
            "normal": [],
            "Laplace": [],
            "Student t(3)": [],
        }
        for step in range(3):
            draw = torch.Generator().manual_seed(step)
            for law, x in _vectors(self.values, draw).items():
                found[law].append((step, {"v": x.unsqueeze(0)}))
        found["recorded gradients"] = [(m.step, m.tensors()) for m in self.moments()]
        return found


def _vectors(n: int, draw: torch.Generator) -> dict[str, Tensor]:
    normal = torch.randn(4, n, generator=draw)
    halves = torch.rand(n, generator=draw, dtype=torch.float64).clamp_min(1e-12)
    sides = torch.where(normal[1] < 0, -1, 1)
    return {
        "normal": normal[0],
        "Laplace": (-halves.log() * sides).float(),
        "Student t(3)": normal[0] / normal[1:].square().mean(0).sqrt(),
    }


def _measure(name: str, knobs: Sequence[str], grads: Grads, step: int) -> tuple[float, float]:
    """Return the bits per value that a worker sends, and vNMSE."""
    first = next(iter(grads.values()))
    method = compressor(name, *knobs)
    comm = Comm(len(first))
    sent = aggregate(method, grads, number=step, comm=comm).sent()
    values = flatten(grads)
    return comm.meter.sent_bits[0] / values.shape[1], float(vnmse(flatten(sent), values).mean())


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
