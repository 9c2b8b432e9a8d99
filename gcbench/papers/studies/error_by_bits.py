"""Errors of methods by the bits that they send, for several laws and for recorded gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Grads, flatten, vnmse
from gcbench.core.wrappers.virtual import aggregate
from gcbench.papers.studies.gradients import OnRealGradients
from gcbench.papers.studies.study import Row, compressor

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
