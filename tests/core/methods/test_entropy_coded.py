"""Variable-length codes have the values of fixed-width ones, and all their bits are metered."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from method_cases import WORKERS, aggregate, build_method, flat, gradients
from nightly import each
from torch import Tensor

from gcbench.core.codecs.elias import omega
from gcbench.core.codecs.elias_codes import dense_code, sparse_code
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import merge
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.methods.entropy_coded import CODES, apply_code
from gcbench.core.methods.orq import EvenLevels
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build

each_code = pytest.mark.parametrize("code", CODES)
RAGGED_LENGTHS_BITS = 3 * 32  # the lengths that `comm.gather` sends before three tensors


@each_code
@pytest.mark.parametrize(
    "settings", [{}, {"norm": "l2", "levels": 1}, {"levels": 127, "bucket_size": 5000}]
)
def test_the_update_is_that_of_the_fixed_width(code: str, settings: dict[str, Any]) -> None:
    grads = gradients(range(4), 0)
    fixed = aggregate(build_method("qsgd", **settings, min_size=0), grads)
    other = aggregate(build_method("qsgd", **settings, min_size=0, code=code), grads)
    assert torch.equal(flat(other.update), flat(fixed.update))
    assert torch.equal(flat(other.sent()), flat(fixed.sent()))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("levels", [1, 4, 127])
@each_code
def test_what_is_not_finite_arrives_as_such(code: str, levels: int, value: float) -> None:
    """A run that diverges must report it, not crash."""
    grads = {"w": torch.randn(2, 500, generator=torch.Generator().manual_seed(0))}
    compressor = build(QSGD(levels, bucket_size=16), code=code)  # type: ignore[arg-type]
    elsewhere = torch.arange(500) // 16 != 6
    expected = aggregate(compressor, grads).update["w"]
    grads["w"][0, 96:112:3] = value
    out = aggregate(compressor, grads)
    assert torch.equal(out.update["w"][:, elsewhere], expected[:, elsewhere])
    assert not out.update["w"][:, ~elsewhere].isfinite().any()
    assert out.shannon_bits is not None and out.shannon_bits().isfinite().all()


# Metered bits


def codes_sent(row: Tensor, levels: int, bucket: int) -> tuple[list[list[int]], int]:
    """Return the codes of each bucket of a tensor, from 0 to 2 levels, and the bits of the scales.

    With norm=linf, the largest magnitude that was sent is the scale.
    """
    buckets = []
    for part in row.split(bucket):
        unit = part.abs().max().clamp_min(1e-30) / levels
        buckets.append((part / unit).round().add(levels).int().tolist())
    return buckets, 32 * len(buckets)


def dense_bits(bucket: list[int], levels: int) -> int:
    return sum(len(dense_code(code, levels)) for code in bucket)


def sparse_bits(bucket: list[int], levels: int) -> int:
    places = [-1, *(i for i, code in enumerate(bucket) if code != levels)]
    distances = [after - before for before, after in itertools.pairwise(places)]
    return sum(map(len, map(omega, distances))) + sum(
        len(sparse_code(code, levels)) for code in bucket if code != levels
    )


@each(("code", "bits_of"), [("elias_dense", dense_bits), ("elias_sparse", sparse_bits)])
@each(("levels", "bucket"), [(7, 16), (1, 50), (127, 5000)])
def test_metered_bits_are_those_of_the_codes_that_were_sent(
    code: str, bits_of: Any, levels: int, bucket: int
) -> None:
    """Messages have whole bytes of codes, and per bucket 16 bits of length and 32 of scale.

    The lengths that `comm` sends are added.
    """
    comm = Comm(WORKERS)
    compressor = build_method("qsgd", code=code, levels=levels, bucket_size=bucket, min_size=0)
    out = aggregate(compressor, gradients(range(WORKERS), 0), comm=comm)
    expected = []
    for worker in range(WORKERS):
        bits = beside = 0
        for g in out.sent().values():
            buckets, scales = codes_sent(g[worker].flatten().double(), levels, bucket)
            bits += sum(bits_of(codes, levels) for codes in buckets)
            beside += scales + 16 * len(buckets)
        expected.append(8 * math.ceil(bits / 8) + beside + RAGGED_LENGTHS_BITS)
    assert comm.meter.sent_bits == expected and len(set(expected)) > 1
    assert comm.meter.received_bits == [sum(expected) - sent for sent in expected]


@each("bucket", [2048, 2049, 10_000])
def test_buckets_beyond_2048_have_a_length_for_each_2048(bucket: int) -> None:
    grads = {"w": torch.zeros(1, 10_000)}
    comm = Comm(1)
    aggregate(build(QSGD(1, bucket_size=bucket), code="elias_dense"), grads, comm=comm)
    lengths = 16 * math.ceil(10_000 / 2048)
    assert comm.meter.sent_bits == [
        10_000 + lengths + 32 * math.ceil(10_000 / bucket) + RAGGED_LENGTHS_BITS
    ]


def shannon_by_hand(codes: list[int]) -> float:
    return sum(d * math.log2(len(codes) / d) for d in Counter(codes).values())


@each("small", [0, 100])
@each("error_feedback", [False, True])
@each("code", ["fixed", *CODES])
def test_the_bound_is_reported_for_every_code_and_not_undercut(
    code: str, small: int, error_feedback: bool
) -> None:
    comm, levels, bucket = Comm(WORKERS), 7, 50
    settings = {
        "levels": levels,
        "bucket_size": bucket,
        "min_size": small,
        "error_feedback": error_feedback,
        **({"alpha": 0.2} if error_feedback else {}),
    }
    out = aggregate(
        build_method("qsgd", code=code, **settings), gradients(range(WORKERS), 0), comm=comm
    )
    assert out.shannon_bits is not None
    bounds = out.shannon_bits().tolist()
    assert all(bound <= sent for bound, sent in zip(bounds, comm.meter.sent_bits, strict=True))
    for worker in range(WORKERS):
        codes, bits = [], 0
        for g in out.sent().values():
            if g[0].numel() < small:
                bits += 32 * g[0].numel()
                continue
            buckets, scales = codes_sent(g[worker].flatten().double(), levels, bucket)
            codes += sum(buckets, [])
            bits += scales
        assert bounds[worker] == pytest.approx(bits + shannon_by_hand(codes))


def test_a_bucket_of_small_tensors_only_has_a_bound_too() -> None:
    """The bound of a model that is exchanged in two parts is that of both."""
    grads, method = gradients(range(WORKERS), 0), build_method("qsgd", min_size=100)
    small = [name for name, g in grads.items() if g[0].numel() < 100]
    parts = [
        aggregate(method, {k: g for k, g in grads.items() if (k in small) == is_small})
        for is_small in (True, False)
    ]
    both = merge(parts, grads).shannon_bits
    assert both is not None
    of_small, of_others = (part.shannon_bits for part in parts)
    assert of_small is not None and of_others is not None
    values = sum(grads[name][0].numel() for name in small)
    assert of_small().tolist() == [32 * values] * WORKERS
    assert torch.equal(both(), of_small() + of_others())


def test_no_bound_is_reported_where_nothing_is_gathered_as_codes() -> None:
    grads = gradients(range(WORKERS), 0)
    for compressor in (
        build_method("none"),
        build_method("powersgd"),
        build_method("qsgd", min_size=0, dense_steps=1),
    ):
        assert aggregate(compressor, grads).shannon_bits is None


def test_ans_costs_a_third_of_a_bit_where_fixed_codes_cost_four() -> None:
    """The settings are ECQ-SGD's for coarse levels: l2, s = 4 and buckets of 4096."""
    x = {"w": torch.randn(1, 1 << 18, generator=torch.Generator().manual_seed(0))}
    per_value = {}
    for code in ("fixed", *CODES):
        comm = Comm(1)
        method = build(QSGD(4, "l2", bucket_size=4096), code=code)  # type: ignore[arg-type]
        out = aggregate(method, x, comm=comm)
        assert out.shannon_bits is not None
        per_value[code] = comm.meter.sent_bits[0] / (1 << 18)
    bound = out.shannon_bits().item() / (1 << 18)
    assert 0.3 < bound <= per_value["ans"] < 1.02 * bound
    assert (
        per_value["ans"]
        < per_value["elias_sparse"]
        < per_value["elias_dense"]
        < per_value["fixed"] / 2
    )


# Refusals


@pytest.mark.parametrize("exchange", ["scatter", "scatter_coded", "sum", "hierarchical"])
@each_code
def test_only_a_gather_takes_messages_of_different_lengths(code: str, exchange: str) -> None:
    says = f"code={code}.*exchange={exchange}.*type exchange=gather or code=fixed"
    with pytest.raises(ValueError, match=says):
        build_method("qsgd", code=code, exchange=exchange)


def test_codes_on_no_grid_are_refused() -> None:
    class OffGrid:
        properties, encode, decode_add = None, None, None

    with pytest.raises(ValueError, match="code=ans.*type code=fixed"):
        apply_code(OffGrid(), "ans")  # type: ignore[arg-type]


@each("code", ["elias_dense", "elias_sparse", "ans"])
@each("level_count", [2, 4, 256])
def test_codes_of_any_length_need_a_level_at_zero(code: Any, level_count: int) -> None:
    with pytest.raises(
        ValueError,
        match=f"code={code} needs a level at zero.*not {level_count}; "
        f"type level_count={min(level_count + 1, 255)}",
    ):
        apply_code(EvenLevels(level_count), code)


def test_a_fixed_code_is_the_codec_itself() -> None:
    assert build_method("qsgd", min_size=0).inner == GatherExchange(QSGD(7, bucket_size=512))
