"""QSGDMaxNorm (Vineeth S, 2021): codes on one grid, sums over any number of workers, and bits.

The lemmas' bounds and equation 11 are tested in tests/core/methods/test_maxnorm.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from method_cases import aggregate, build_method, flat
from torch import Tensor

from gcbench.core.codec import Codec
from gcbench.core.codecs.scales import Norm
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor
from gcbench.core.methods.maxnorm import MaxNorm, MultiScale
from gcbench.core.methods.orq import ORQ, BinGradPB, EvenLevels
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def norm_of(rows: Tensor, norm: Norm) -> Tensor:
    """Return ||w||, the largest norm of any worker's row."""
    return rows.double().abs().max() if norm == "linf" else rows.double().norm(dim=1).max()


@pytest.mark.claim("maxnorm-01", where="lemmas 1 and 2")
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("bits", [[0], [2], [8], [2, 6], [0, 3, 5]])
def test_every_value_of_every_worker_is_unbiased(bits: list[int], norm: Norm) -> None:
    """Means are within five standard deviations on each value's scale, whatever a worker's norm."""
    n, repeats = 300, 200
    rows = torch.stack(
        [randn(n), 0.1 * randn(n, seed=1), 3 * randn(n, seed=2) ** 5, torch.full((n,), -0.3)]
    )
    method = MultiScale(bits, norm)
    drawn = torch.stack(
        [flat(aggregate(method, {"w": rows}, number=i).sent()) for i in range(repeats)]
    )
    w = norm_of(rows, norm)
    unit = w / method.shared_scales(rows, w.float().view(1, 1), Comm(4)).double()
    p = (rows.double().abs() / unit).frac()
    # Five standard deviations say nothing about errors that hardly ever happen.
    rare = 10 * unit / repeats
    allowed = 5 * unit * (p * (1 - p) / repeats).sqrt() + rare + 1e-6 * w
    assert ((drawn.mean(0) - rows.double()).abs() <= allowed).all()


@pytest.mark.claim("maxnorm-02", where="section 3.1")
@pytest.mark.parametrize("method", [MaxNorm(1), MaxNorm(127), MultiScale([2, 6])])
@pytest.mark.parametrize("workers", [2, 16, 1024])
def test_the_decoded_sum_is_the_mean_of_the_decoded_codes(
    method: MaxNorm | MultiScale, workers: int
) -> None:
    """They are equal to the bit if a step of the grid is a power of two, as codes are integers.

    A sum takes log2(W) bits more than a code.
    """
    smallest = method.levels if isinstance(method, MaxNorm) else method.levels[0]
    rows = randn(workers, 64).clamp(-1, 1) * smallest
    rows[0, 0] = smallest  # this is ||w||
    comm = Comm(workers)
    out = aggregate(method, {"w": rows}, comm=comm)
    assert torch.equal(flat(out.update), flat(out.sent()).mean(0, keepdim=True))
    width = math.ceil(math.log2(2 * workers * smallest + 1))
    assert width == math.ceil(math.log2(2 * smallest + 1)) + math.log2(workers)
    agreed = 64 if isinstance(method, MultiScale) else 0
    assert comm.meter.sent_bits[0] == 32 + agreed + 64 * math.ceil(64 / (64 // width))


@pytest.mark.claim("maxnorm-02", where="section 3.1, for all other codes that an all-reduce adds")
@pytest.mark.parametrize(
    "codec",
    [QSGD(127, bucket_size=16), QSGD(7, bucket_size=16), EvenLevels(9), BinGradPB(), ORQ(3)],
)
def test_no_sum_of_1024_workers_overflows(codec: Codec) -> None:
    """Adjacent values have the highest and the lowest codes."""
    row = 3 * torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, -1.0]).repeat(7)
    out = aggregate(build(codec, exchange="sum"), {"w": row.repeat(1024, 1)})
    torch.testing.assert_close(out.update["w"][0], row, rtol=1e-6, atol=0)


@pytest.mark.claim("maxnorm-03", where="section 3.2")
@pytest.mark.parametrize(
    ("norm", "scales", "ratio"),
    [("l2", [2, 6], 0.052), ("l2", [4, 8], 0.024), ("linf", [2, 6], 0.86), ("linf", [4, 8], 0.77)],
)
def test_two_scales_err_less_than_the_smallest_alone(
    norm: Norm, scales: list[int], ratio: float
) -> None:
    """`ratio` is the variance relative to that of the smallest scale, at the same width of codes.

    The values are Gaussian. With the 2-norm, all 200,000 of them take the largest scale.
    """
    rows = randn(1, 200_000)

    def variance(method: Compressor) -> float:
        return float((flat(aggregate(method, {"w": rows}).sent()) - rows.double()).square().sum())

    found = variance(MultiScale(scales, norm)) / variance(MultiScale(scales[:1], norm))
    assert found == pytest.approx(ratio, rel=0.05)
    w = norm_of(rows, norm).float().view(1, 1)
    assert (MultiScale(scales, norm).shared_scales(rows, w, Comm(1)) == 2 ** scales[1]).all() == (
        norm == "l2"
    )


@pytest.mark.claim("maxnorm-04", where="section 3.1")
@pytest.mark.parametrize(
    ("bits", "workers", "lane"),
    [(4, 1, 4), (8, 1, 8), (4, 8, 7), (8, 8, 11), (4, 1024, 14), (8, 1024, 18)],
)
def test_bits_are_the_papers_and_room_for_the_sum(bits: int, workers: int, lane: int) -> None:
    """One worker sends 32 + n (ceil(log2 s) + 1) bits, as the paper counts.

    A sum over W workers takes log2(W) more bits per value, and the part of each 64-bit word that no
    lane fills. The paper's "8 bits" leave out the sign.
    """
    n, comm = 6400, Comm(workers)
    levels = 2 ** (bits - 1) - 1
    aggregate(
        build_method("maxnorm", bits=bits), {"w": torch.zeros(1, n).expand(workers, n)}, comm=comm
    )
    assert comm.meter.sent_bits[0] == 32 + 64 * math.ceil(n / (64 // lane))
    paper = math.ceil(math.log2(levels)) + 1
    assert paper == bits and lane == math.ceil(
        math.log2(2 * workers * levels + 1)
    ) <= paper + math.ceil(math.log2(workers))
    assert workers > 1 or comm.meter.sent_bits[0] == 32 + n * paper


@pytest.mark.claim("maxnorm-04", where="section 3.2")
@pytest.mark.parametrize(
    ("scales", "scale_bits"), [([2, 6], 1), ([8, 12], 1), ([1, 3, 5], 2), ([6], 0)]
)
def test_bits_of_more_scales(scales: list[int], scale_bits: int) -> None:
    """N scales take ceil(log2 N) more bits per value, and codes of the smallest scale.

    For s = 2^b levels, the paper counts b + 1 bits. They hold 2^(b+1) codes, one fewer than there
    are, so that ours take b + 2 bits.
    """
    n, comm = 6400, Comm(1)
    aggregate(
        build_method("maxnorm_multiscale", scales=str(scales).replace(" ", "")),
        {"w": torch.zeros(1, n)},
        comm=comm,
    )
    lane = min(scales) + 2
    assert 2 * 2 ** min(scales) + 1 == 2 ** (lane - 1) + 1
    assert comm.meter.sent_bits[0] == 32 + n * scale_bits + 64 * math.ceil(n / (64 // lane))
    assert scale_bits == math.ceil(math.log2(len(scales)))
