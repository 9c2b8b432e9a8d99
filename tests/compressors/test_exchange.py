"""How codes travel changes what is sent, not what it means."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_cases import aggregate, flat, gradients

from gcbench.codecs.packing import pack_lanes, unpack_lanes
from gcbench.comm import VirtualComm
from gcbench.compressors import Grads, Properties, State, Step
from gcbench.compressors.bucketed import Parameters
from gcbench.compressors.exchange import Exchange, sent_by, sum_codes
from gcbench.compressors.qsgd import QSGD


def mean_of(grads: Grads) -> torch.Tensor:
    return flat({k: g.mean(0, keepdim=True) for k, g in grads.items()})


@pytest.mark.parametrize("exchange", ["gather", "scatter", "scatter_coded", "sum"])
def test_every_way_is_unbiased(exchange: Exchange) -> None:
    compressor, grads, steps = sent_by(QSGD(3, bucket_size=16), exchange), gradients(range(4), 0), 400
    updates = torch.stack([flat(aggregate(compressor, grads, number=i).update).squeeze() for i in range(steps)])
    error = (updates.mean(0) - mean_of(grads).squeeze()).norm()
    spread = (updates.var(0).sum() / steps).sqrt()
    assert error < 2 * spread


@pytest.mark.parametrize("exchange", ["scatter", "scatter_coded", "sum"])
def test_enough_levels_give_the_mean(exchange: Exchange) -> None:
    grads = gradients(range(4), 0)
    out = aggregate(sent_by(QSGD(127, bucket_size=8), exchange), grads)
    error = (flat(out.update) - mean_of(grads)).norm() / mean_of(grads).norm()
    assert error < 0.02


def test_scattered_means_travel_exactly() -> None:
    """What each worker sent is known, and the shards' means are taken of just that."""
    grads = gradients(range(4), 0)
    out = aggregate(sent_by(QSGD(3, bucket_size=16), "scatter"), grads)
    torch.testing.assert_close(flat(out.update), mean_of(out.sent()), rtol=1e-6, atol=1e-7)


def test_summed_codes_are_the_sum_of_what_was_sent() -> None:
    grads = gradients(range(4), 0)
    out = aggregate(sent_by(QSGD(3, bucket_size=16), "sum"), grads)
    torch.testing.assert_close(flat(out.update), mean_of(out.sent()), rtol=1e-6, atol=1e-7)


class RoundedDown(QSGD):
    """A biased code: what is between two levels is always rounded down."""

    @property
    def properties(self) -> Properties:
        return Properties(contractive=True)

    def code(self, v: torch.Tensor, parameters: Parameters, words: torch.Tensor | None) -> torch.Tensor:
        return super().code(v, parameters, torch.full(v.shape, -(2**31), dtype=torch.int32))


def test_sums_that_no_float_holds_lose_nothing() -> None:
    """The sum of 4096 codes around 4096 is near 2^24, above which float32 has no odd numbers."""
    codes = torch.full((4096, 3), 4096, dtype=torch.int16)
    codes[7] += torch.tensor([1, -1, 0], dtype=torch.int16)
    assert sum_codes(codes, 8192, VirtualComm(4096)).tolist() == [[1.0, -1.0, 0.0]]


def test_what_a_biased_second_coding_leaves_out_is_made_up_for_by_the_owner() -> None:
    """The workers' ones and zeros are coded exactly; their mean, a half, is always rounded down to zero."""
    grads = {"w": torch.ones(2, 64)}
    grads["w"][1] = 0
    grads["w"][:, ::16] = 1  # so that the scale of every bucket is 1
    compressor, state, total = sent_by(RoundedDown(1, bucket_size=16), "scatter_coded"), State(), torch.zeros(1, 64)
    for number in range(40):
        out = aggregate(compressor, grads, number=number, state=state)
        state, total = out.state, total + out.update["w"]
    torch.testing.assert_close(total / 40, grads["w"].mean(0, keepdim=True))


@pytest.mark.parametrize(("levels", "workers"), [(1, 2), (7, 9), (1, 63), (7, 16), (127, 1024), (127, 4)])
def test_lanes_are_never_wider_than_the_smallest_safe_integer(levels: int, workers: int) -> None:
    highest = 2 * levels * workers
    lanes = 64 // highest.bit_length()
    safe = next(bits for bits in (8, 16, 32, 64) if highest < 2**bits)
    assert 64 / lanes <= safe
    assert workers * levels > 63 or 64 / lanes < 8


def test_no_sum_overflows_with_1024_workers_at_their_highest() -> None:
    workers, bits = 1024, (1024 * 254).bit_length()
    words = sum(pack_lanes(torch.full((1, 100), 254, dtype=torch.uint8), bits) for _ in range(workers))
    assert torch.equal(unpack_lanes(words, 100, bits), torch.full((1, 100), 254 * workers, dtype=torch.int32))


@given(bits=st.integers(1, 31), n=st.integers(1, 70), seed=st.integers(0, 99))
def test_lanes_round_trip(bits: int, n: int, seed: int) -> None:
    codes = torch.randint(0, 2 ** min(bits, 8), (2, n), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    assert torch.equal(unpack_lanes(pack_lanes(codes, bits), n, bits), codes.to(torch.int32))


def test_a_worker_receives_less_when_codes_are_scattered_or_summed() -> None:
    grads = {"w": torch.randn(16, 40_000, generator=torch.Generator().manual_seed(0))}
    received = {}
    for exchange in ("gather", "scatter", "scatter_coded", "sum"):
        comm = VirtualComm(16)
        sent_by(QSGD(7, bucket_size=512), exchange).aggregate(grads, State(), comm, Step(0, 1, range(16), {"w": 0}))  # type: ignore[arg-type]
        received[exchange] = comm.meter.received_bits[0] / 40_000
    assert received["scatter_coded"] < received["sum"] < received["scatter"] < received["gather"]
    assert received["scatter_coded"] < 2 * 4.2 and received["gather"] > 15 * 4
