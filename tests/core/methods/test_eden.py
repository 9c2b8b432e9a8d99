"""EDEN against its equations in float64: levels, rotations, scales, errors and their mean."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from method_cases import aggregate
from nightly import each
from numpy.typing import NDArray
from torch import Tensor

from gcbench.core.codecs.hadamard import add_rotated_back, padded, rotate
from gcbench.core.codecs.lloyd_max import normal_levels
from gcbench.core.codecs.noise import Noise
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Step
from gcbench.core.methods.eden import Eden
from gcbench.core.wrappers.build import build

Array = NDArray[np.float64]
CPU = torch.device("cpu")
# Mean squared errors of the levels, as Max (1960) prints them.
PRINTED = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}


def noise_of(rows: int, n: int, offset: int = 0, number: int = 0) -> Noise:
    return Step(number, 1, range(rows), {"w": offset}).noise("codec", {"w": n}, CPU)


def sent_by(code: Eden, x: Tensor, noise: Noise) -> Tensor:
    """Return what is decoded of the codes of rows `[w, n]`."""
    out, segments = torch.zeros_like(x), (x.shape[1],)
    code.drawing(noise).decode_add(code.encode(x, segments, noise), segments, out)
    return out


def error(code: Eden, x: Tensor, number: int = 0) -> float:
    """Return vNMSE, |C(x) - x|^2 / |x|^2."""
    off = sent_by(code, x, noise_of(len(x), x.shape[1], number=number)) - x
    return float(off.double().square().sum() / x.double().square().sum())


# Levels


@cache
def levels_by_lloyd(bits: int) -> Array:
    """Return levels by Lloyd's iteration, with sums over 400,000 places of equal probability."""
    places = torch.special.ndtri((torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000)
    z = places.numpy()
    q = np.quantile(z, (np.arange(2**bits) + 0.5) / 2**bits)
    sums = np.concatenate([[0], np.cumsum(z)])
    for _ in range(800):
        ends = np.concatenate([[0], np.searchsorted(z, (q[1:] + q[:-1]) / 2), [len(z)]])
        q = np.diff(sums[ends]) / np.diff(ends)
    return q


@each("bits", [1, 2, 3, 4])
def test_levels_are_those_of_least_error(bits: int) -> None:
    levels = np.array(normal_levels(bits))
    np.testing.assert_allclose(levels, levels_by_lloyd(bits), rtol=0.002)
    z = torch.special.ndtri((torch.arange(10**6, dtype=torch.float64) + 0.5) / 10**6).numpy()
    nearest = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, z)]
    assert ((z - nearest) ** 2).mean() == pytest.approx(PRINTED[bits], rel=1e-3)


@each("bits", range(1, 9))
def test_levels_are_the_means_of_their_cells_to_full_precision(bits: int) -> None:
    levels = normal_levels(bits)
    ends = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
    for below, above, level in zip([-math.inf, *ends], [*ends, math.inf], levels, strict=True):
        phi = [math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) for x in (below, above)]
        # The share of a cell of negative values is a difference of small numbers.
        low, high = sorted((abs(below), abs(above))) if below * above >= 0 else (below, above)
        share = (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2))) / 2
        assert level == pytest.approx((phi[0] - phi[1]) / share, rel=1e-9)


# Rotations


def word(element: int, key: int, inner: int) -> int:
    x = (element ^ key) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x21F0AAAD + inner) & 0xFFFFFFFF
    x ^= x >> 15
    return x * 0x735A2D97 & 0xFFFFFFFF


def rotation(n: int, first: int, key: int, inner: int) -> Array:
    """Return H E H D / n for a block whose first value has the number `first`."""
    one, matrix = np.array([[1, 1], [1, -1]]), np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.kron(matrix, one)

    def signs(key: int, inner: int) -> Array:
        places = [(i % min(n, 256) + i // 4096 * 256, i // 256 % 16) for i in range(n)]
        return np.array([1 - 2 * (word(first + at, key, inner) >> 31 - s & 1) for at, s in places])

    other = 0x5BD1E995
    turned = (matrix * signs(inner ^ other, key ^ other)) @ (matrix * signs(key, inner))
    return turned / n


def blocks_of(n: int, size: int) -> list[tuple[int, int, int]]:
    """Return the places of blocks in the tensor, how many values they have, and their lengths."""
    full = [(at, size, size) for at in range(0, n - n % size, size)]
    rest = n % size
    last = max(min(64, size), 2 ** math.ceil(math.log2(rest))) if rest else 0
    return [*full, *([(n - rest, rest, last)] if rest else [])]


SIZES = [(300, 64), (1, 4096), (700, 512), (90, 4096), (900, 1024), (40, 16)]


@each("n", [n for n, _ in SIZES])
def test_rotations_are_those_of_the_equations_and_keep_lengths(n: int) -> None:
    size, rows = dict(SIZES)[n], 2
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n))
    noise = noise_of(rows, n, offset=12345)
    found = rotate([x], noise, size)
    expected = []
    for row, pair in zip(x.double().numpy(), noise.keys.tolist(), strict=True):
        key, inner = (k & 0xFFFFFFFF for k in pair)
        parts = [
            rotation(length, 12345 + at, key, inner)
            @ np.pad(row[at : at + count], (0, length - count))
            for at, count, length in blocks_of(n, size)
        ]
        expected.append(np.concatenate(parts))
    assert found.shape == (rows, *padded([n], size))
    np.testing.assert_allclose(found, np.stack(expected), atol=2e-6)
    back = torch.ones_like(x)
    add_rotated_back(found, noise, size, [back])
    torch.testing.assert_close(back, x + 1, atol=2e-6, rtol=0)


def test_a_few_large_values_become_normal_ones() -> None:
    """One transform would leave two magnitudes of two values."""
    x = torch.zeros(1, 4096)
    x[0, 5], x[0, 999] = 3, -2
    z = rotate([x], noise_of(1, 4096), 4096).double()
    z /= z.square().mean().sqrt()
    assert z.abs().unique().numel() > 100
    assert (z**4).mean() == pytest.approx(3, rel=0.1)


# Codes


@each("scale", ["unbiased", "biased", "rms"])
def test_messages_and_values_are_those_of_the_equations(scale: str) -> None:
    for bits, n, size in ((1, 700, 512), (2, 300, 64), (4, 900, 1024), (8, 40, 4096)):
        x = torch.randn(2, n, generator=torch.Generator().manual_seed(bits)) ** 3
        noise, code = noise_of(2, n, offset=7), Eden(bits, scale, size)  # type: ignore[arg-type]
        found = sent_by(code, x, noise)
        levels = np.array(normal_levels(bits))
        for row, pair, got in zip(x.double().numpy(), noise.keys.tolist(), found, strict=True):
            key, inner = (k & 0xFFFFFFFF for k in pair)
            for at, count, length in blocks_of(n, size):
                turn = rotation(length, 7 + at, key, inner)
                y = turn @ np.pad(row[at : at + count], (0, length - count))
                rms = np.linalg.norm(y) / math.sqrt(length)
                q = levels[np.abs(y[:, None] / rms - levels).argmin(1)]
                s = {"unbiased": y @ y / (y @ q), "biased": y @ q / (q @ q), "rms": rms}[scale]
                expected = (turn.T @ (s * q))[:count]
                np.testing.assert_allclose(
                    got[at : at + count], expected, atol=1e-5 * float(np.abs(expected).max())
                )


# vNMSE of an earlier measurement of EDEN, in one rotation of blocks of 4,096 of other draws.
MEASURED = {1: (0.569, 0.571), 2: (0.133, 0.134), 4: (9.6e-3, 9.6e-3)}


@cache
def vectors() -> dict[str, Tensor]:
    """Return 131,072 values of each law, in eight rows."""
    draw = torch.Generator().manual_seed(0)
    uniform = torch.rand(8, 16384, generator=draw).clamp(1e-7, 1 - 1e-7)
    normal = torch.randn(4, 8, 16384, generator=draw)
    return {
        "normal": normal[0],
        "Laplace": torch.where(uniform < 0.5, (2 * uniform).log(), -(2 - 2 * uniform).log()),
        "Student t(3)": normal[0] / (normal[1:] ** 2).mean(0).sqrt(),
    }


@each("law", ["normal", "Laplace", "Student t(3)"])
def test_errors_do_not_depend_on_the_law(law: str) -> None:
    x = vectors()[law]
    for bits, printed in PRINTED.items():
        unbiased = error(Eden(bits), x)
        assert unbiased == pytest.approx(1 / (1 - printed) - 1, rel=0.02)
        for measured in MEASURED.get(bits, ()):
            assert unbiased == pytest.approx(measured, rel=0.02)
        for scale in ("biased", "rms"):
            assert error(Eden(bits, scale), x) == pytest.approx(printed, rel=0.02)  # type: ignore[arg-type]


ROTATIONS = 2000


@each("bits", [1, 2, 4])
def test_the_mean_over_rotations_is_the_vector(bits: int) -> None:
    """Its error is that of 2,000 independent ones, for heavy tails and for two values alone."""
    tails = torch.randn(512, generator=torch.Generator().manual_seed(1)) ** 3
    two = torch.zeros(512)
    two[3], two[300] = 1.0, 0.6
    for x in (tails, two):
        rows = x.repeat(ROTATIONS, 1)
        errors = (sent_by(Eden(bits), rows, noise_of(ROTATIONS, 512)) - rows).double()
        by_chance = errors.square().sum(1).mean().sqrt() / ROTATIONS**0.5
        assert errors.mean(0).norm() == pytest.approx(float(by_chance), rel=0.1)
        along = errors @ x.double() / x.double().square().sum()
        assert along.abs().max() < 1e-5, "the scale keeps the length along x in every rotation"


def test_errors_of_workers_with_equal_gradients_are_independent() -> None:
    x = torch.randn(1, 4096, generator=torch.Generator().manual_seed(2))
    off = aggregate(build(Eden(1)), {"w": x.repeat(64, 1)}).update["w"] - x
    assert off.square().sum() / x.square().sum() == pytest.approx(0.571 / 64, rel=0.15)


def test_decoders_draw_rotations_in_every_exchange() -> None:
    """What is sent has no seed; the update is the mean of what was sent, or nearly so."""
    grads = {"w": torch.randn(4, 50, 30, generator=torch.Generator().manual_seed(3))}
    mean = grads["w"].mean(0, keepdim=True)
    for exchange in ("gather", "scatter", "scatter_coded", "hierarchical"):
        nodes = 2 if exchange == "hierarchical" else None
        method = build(Eden(8), exchange=exchange, workers_per_node=nodes)  # type: ignore[arg-type]
        comm = Comm(4)
        out = aggregate(method, grads, comm=comm)
        assert (out.update["w"] - mean).norm() < 0.02 * mean.norm(), exchange
        assert (out.sent()["w"].mean(0, keepdim=True) - mean).norm() < 0.02 * mean.norm(), exchange
