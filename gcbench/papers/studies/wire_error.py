"""Errors of means that are added on the wire, by the number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gcbench.core.codecs.kernels import keep_backend, use_backend
from gcbench.core.codecs.native import find_compiler
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Grads, flatten, vnmse
from gcbench.core.wrappers.virtual import aggregate
from gcbench.papers.studies.study import Row, Study, compressor

METHODS = (
    "bf16",
    "bf16 rounding=stochastic",
    "bf16 accumulate=fp32",
    "bf16 accumulate=fp32 rounding=stochastic",
    "fp16",
    "fp16 accumulate=fp32",
    "mxfp8 exchange=ring",
    "mxfp8 exchange=ring rounding=stochastic",
    "mxfp8 exchange=scatter_coded",
    "nvfp4 exchange=ring",
    "nvfp4 exchange=ring rounding=stochastic",
    "nvfp4 exchange=scatter_coded",
)


@dataclass(frozen=True, kw_only=True)
class WireError(Study):
    """Error of the mean of W workers that is added on a wire of few bits, by W.

    Worker i has the gradient `common` z_0 + z_i with normal z of `values` values. Half-precision
    gradients are added by an all-reduce, hop by hop, or in fp32 by the owners of shards; coded ones
    in a ring that codes the sum again at every hop, or by the owners of shards. `vnmse` is |update
    - g|^2 / |g|^2 with the mean g in float64, `bits` what a worker sends. Virtual workers add as
    gloo's do, to the bit. Takes about a minute.
    """

    methods: Sequence[str] = METHODS
    workers: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    coded_workers: int = 256  # the most whose codes are tried, as a ring has W hops
    values: int = 2**14
    common: float = 0.3

    def rows(self) -> Iterator[Row]:
        with keep_backend():
            use_backend("native" if find_compiler() else "eager")
            for workers in self.workers:
                generator = torch.Generator().manual_seed(workers)
                x = torch.randn(workers, self.values, generator=generator)
                x += self.common * torch.randn(1, self.values, generator=generator)
                for method in self.methods:
                    if "exchange=" in method and workers > self.coded_workers:
                        continue
                    bits, error = error_of_mean(method, {"x": x})
                    yield {
                        "row": f"{method}, W={workers}",
                        "method": method,
                        "workers": workers,
                        "bits": bits,
                        "vnmse": error,
                    }


def error_of_mean(method: str, grads: Grads) -> tuple[float, float]:
    """Return the bits per value that a worker sends, and vNMSE of the mean in float64."""
    values = flatten(grads)
    comm = Comm(len(values))
    out = aggregate(compressor(*method.split()), grads, comm=comm)
    mean = values.mean(0, dtype=torch.float64).unsqueeze(0)
    return comm.meter.sent_bits[0] / values.shape[1], float(vnmse(flatten(out.update), mean))
