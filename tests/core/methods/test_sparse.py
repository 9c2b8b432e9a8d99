"""Top K, Random K and Random Block send the right values, and keep the others."""

from __future__ import annotations

import math

import pytest
import torch
from method_cases import aggregate, build_method, flat, gradients
from nightly import each
from torch import Tensor

from gcbench.core.codecs.indices import (
    _largest_by_sort,
    index_bytes,
    largest,
    largest_values,
    pack_indices,
    unpack_indices,
)
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, State
from gcbench.core.methods.random_sparse import RandomBlock, RandomK
from gcbench.core.methods.top_k import TopK
from gcbench.core.wrappers.build import build


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Positions


@each(("n", "k"), [(1, 1), (10, 3), (1000, 1), (1000, 999), (1000, 1000)])
def test_largest_are_those_of_a_stable_sort(n: int, k: int) -> None:
    """There are many ties; of equal values, the first ones are taken."""
    x = torch.randint(0, 4, (3, n), generator=torch.Generator().manual_seed(n)).float()
    expected = x.sort(dim=1, descending=True, stable=True).indices[:, :k].sort().values
    assert torch.equal(largest(x, k), expected)


def test_one_sort_finds_the_largest_of_segments_of_any_size() -> None:
    """A GPU takes all segments by a sort; there are ties, and values that are not finite."""
    run = ((7, 2), (1000, 30), (1, 1), (64, 64), (500, 1))
    x = torch.randint(-4, 5, (3, sum(n for n, _ in run))).float()
    x[0, 3], x[1, 30], x[2, 900] = math.nan, -math.inf, -math.nan
    found, values = largest_values(x, *zip(*run, strict=True))
    assert torch.equal(_largest_by_sort(x, run), found)
    assert torch.equal(x.gather(1, found).view(torch.int32), values.view(torch.int32))


def test_short_segments_are_exact_whatever_the_one_before_was(backend: None) -> None:
    """Native code looks where the largest of the segment before were."""
    scales = [1.0, 100.0, 0.01, 0.0, 1.0, math.inf, math.nan, 1.0]
    x = randn(2, len(scales) * 4096) * torch.tensor(scales).repeat_interleave(4096)
    sizes, counts = [4096] * len(scales), [64] * len(scales)
    found, values = largest_values(x, sizes, counts)
    parts = [largest(part, 64) + 4096 * i for i, part in enumerate(x.split(4096, dim=1))]
    assert torch.equal(found, torch.cat(parts, dim=1))
    assert torch.equal(x.gather(1, found).view(torch.int32), values.view(torch.int32))


ADVERSE = {
    "random": lambda n: torch.rand(n, generator=torch.Generator().manual_seed(0)),
    "all equal": lambda n: torch.ones(n),
    "few of the sampled ones": lambda n: (torch.arange(n) % 12 != 0).float() + torch.arange(n) / n,
    "only the sampled ones": lambda n: (torch.arange(n) % 12 == 0).float() + torch.arange(n) / n,
    "falling": lambda n: torch.arange(n, 0, -1).float(),
    "ties at the border": lambda n: (
        torch.rand(n, generator=torch.Generator().manual_seed(0)) * 8
    ).floor(),
}


@pytest.mark.parametrize("kind", ADVERSE)
@pytest.mark.parametrize("k", [1, 30, 2_000, 20_000, 30_000])
def test_largest_of_many_are_exact_whatever_a_sample_says(kind: str, k: int, backend: None) -> None:
    x = torch.stack([ADVERSE[kind](200_000), ADVERSE["random"](200_000)])  # every 12th is sampled
    expected = x.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    assert torch.equal(largest(x, k), expected)


def test_largest_of_many_are_by_magnitude_and_see_nan(backend: None) -> None:
    x = randn(2, 100_003)
    x[0, 5], x[0, 17], x[1, -1], x[1, 0] = -math.nan, -math.inf, math.nan, -1e30
    bits = x.abs().view(torch.int32)
    expected = bits.sort(dim=1, descending=True, stable=True).indices[:, :1000].sort(dim=1).values
    assert torch.equal(largest(x, 1000), expected)
    assert largest(x, 2)[0].tolist() == [5, 17] and largest(x, 2)[1].tolist() == [0, 100_002]
    assert torch.equal(largest(x[:, 1:], 1000)[1], largest(x[:, 1:].contiguous(), 1000)[1])


def test_largest_orders_denormals_infinity_and_nan() -> None:
    x = torch.tensor([[1e-45, 0.0, float("nan"), 1e-40, float("inf"), 3e38]])
    facts = [largest(x, k)[0].tolist() for k in range(1, 6)]
    assert facts == [[2], [2, 4], [2, 4, 5], [2, 3, 4, 5], [0, 2, 3, 4, 5]]


@each("n", [1, 2, 3, 7, 9, 100, 256, 257, 1000, 65536, 65537, 100_000])
@each("share", [0.0, 0.002, 0.05, 0.5, 1.0])
def test_positions_come_back_in_the_bytes_that_were_promised(n: int, share: float) -> None:
    k = max(1, int(share * n))
    index = (
        torch.stack(
            [torch.randperm(n, generator=torch.Generator().manual_seed(i))[:k] for i in range(3)]
        )
        .sort()
        .values
    )
    packed = pack_indices(index, ((1, k, n),))
    assert packed.dtype == torch.uint8 and packed.shape == (3, index_bytes(n, k))
    assert torch.equal(unpack_indices(packed, ((1, k, n),)), index)
    bits = (n - 1).bit_length()
    assert index_bytes(n, k) <= min((n + 7) // 8, bits * (k + 7) / 8)


# Top K


def test_top_k_by_hand() -> None:
    """2 of 5 values are sent, with signs: of equal magnitudes 3, -3, 3, the first two."""
    g = torch.tensor([[1.0, 3.0, -3.0, 3.0, -2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    out = aggregate(build(TopK(0.4)), {"w": g})
    assert torch.equal(
        out.sent()["w"], torch.tensor([[0.0, 3.0, -3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    )
    assert torch.equal(out.update["w"], torch.tensor([[0.0, 1.5, -1.5, 0.0, 0.0]]))


@each(
    ("fraction", "n", "k"), [(0.5 / 136, 272, 1), (0.5 / 136, 271, 1), (0.5 / 136, 272_000, 1000)]
)
@each("digits", [17, 12])
def test_a_fraction_is_counted_as_it_was_meant(
    fraction: float, n: int, k: int, digits: int
) -> None:
    assert TopK(float(f"{fraction:.{digits}g}")).count(n) == k
    assert TopK(0.1).count(9) == 1 and TopK(0.25).count(11) == 2 and TopK(1.0).count(7) == 7


@each("index", ["int32", "auto"])
@each("fraction", [0.01, 0.3, 1.0])
def test_positions_of_either_size_say_the_same(fraction: float, index: str) -> None:
    """The largest values of tensors of many sizes are sent, and all bits are metered."""
    grads, comm = gradients(range(3), 0), Comm(3)
    method = TopK(fraction, index)  # type: ignore[arg-type]
    sent = aggregate(build(method), grads, comm=comm).sent()
    for name, g in grads.items():
        rows, kept = g.reshape(3, -1), sent[name].reshape(3, -1)
        k = method.count(rows.shape[1])
        smallest = rows.abs().sort(dim=1, descending=True).values[:, k - 1 : k]
        assert torch.equal(kept, torch.where(rows.abs() >= smallest, rows, 0))
    ks = [(g[0].numel(), method.count(g[0].numel())) for g in grads.values()]
    bits = sum(32 * k + (8 * index_bytes(n, k) if index == "auto" else 32 * k) for n, k in ks)
    assert comm.meter.sent_bits == [bits] * 3


# Random K and Random Block


METHODS: dict[str, Compressor] = {"random_k": RandomK(2), "random_block": RandomBlock(2)}
each_method = pytest.mark.parametrize("name", METHODS)


@each_method
def test_all_workers_send_the_same_positions_and_r_times_n_plus_m_of_them(name: str) -> None:
    grads, comm = {"w": randn(3, 10, 4, 2, 2) + 9, "small": randn(3, 2, 2) + 9}, Comm(3)
    out = aggregate(METHODS[name], grads, comm=comm)
    sent = out.sent()
    for row in sent["w"]:
        assert torch.equal(row != 0, sent["w"][0] != 0)
        assert int((row != 0).sum()) == 2 * (10 + 16)
    assert torch.equal(sent["small"], grads["small"]), "never more than all"
    assert comm.meter.sent_bits == [32 * (52 + 4)] * 3
    torch.testing.assert_close(
        out.update["w"], torch.where(sent["w"][:1] != 0, grads["w"].mean(0, keepdim=True), 0)
    )


@each_method
def test_every_value_is_sent_equally_often(name: str) -> None:
    """A value is sent in K / (n m) = 26 / 160 of the steps; equal tensors draw independently."""
    method = RandomK(1) if name == "random_k" else RandomBlock(1)
    grads = {"w": torch.ones(1, 10, 16), "twin": torch.ones(1, 10, 16)}
    steps = [flat(aggregate(method, grads, number=number).update) for number in range(2000)]
    rate = torch.cat(steps).mean(0)
    p = 26 / 160
    assert (rate - p).abs().max() < 5 * (p * (1 - p) / 2000) ** 0.5
    assert sum(torch.equal(step[:, :160], step[:, 160:]) for step in steps) < 60


def test_blocks_are_contiguous_and_wrap() -> None:
    wrapped = 0
    for number in range(100):
        kept = flat(aggregate(RandomBlock(1), {"w": torch.ones(1, 10, 16)}, number=number).update)[
            0
        ]
        borders = int((kept != kept.roll(1)).sum())
        assert borders == 2 and int(kept.sum()) == 26
        wrapped += bool(kept[0]) and bool(kept[-1])
    assert 4 <= wrapped <= 35, "25 of 160 positions"


@pytest.mark.parametrize("choice", ["top_k", "random_k", "random_block"])
def test_the_residual_keeps_what_was_not_sent(choice: str) -> None:
    """A value is either sent as it is or kept whole; what is kept is sent eventually."""
    settings = {"fraction": 0.05} if choice == "top_k" else {"rank": 1}
    compressor, state = build_method(choice, **settings), State()
    grads = {"w": randn(4, 20, 30), "x": randn(4, 12, 3, 3, seed=1)}
    applied = torch.zeros(1, 1, dtype=torch.float64)
    for number in range(200):
        before = state.per_worker
        corrected = {k: g + before[k] if before else g for k, g in grads.items()}
        out = aggregate(compressor, grads, number=number, state=state)
        sent, residual = out.sent(), out.state.per_worker
        for name, u in corrected.items():
            assert torch.equal(sent[name] != 0, residual[name] != u)
            assert not (residual[name] * sent[name]).any()
        state, applied = out.state, applied + flat(out.update)
    wanted = 200 * flat(grads).mean(0)
    assert (applied - wanted).norm() < 0.2 * wanted.norm()


def test_positions_that_32_bits_do_not_hold_are_refused() -> None:
    long = torch.zeros(1, 1).expand(1, 2**31 + 1)
    with pytest.raises(ValueError, match="^index=int32: a tensor of 2,147,483,649 values has "):
        TopK(0.5).encode(long, (long.shape[1],), None)  # type: ignore[arg-type]
