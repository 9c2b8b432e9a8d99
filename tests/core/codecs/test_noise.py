"""Draws are a function of their arguments, and pass tests of randomness."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from needed import patience
from nightly import each, slow_but
from processes import Copy, code
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gcbench.core.codecs.noise import (
    Noise,
    count_keys,
    keys,
    mix,
    signed,
    site_number,
    unit_interval,
)
from gcbench.core.compressor import Step

CPU = torch.device("cpu")
FROZEN_KEYS = [[689005461, 273483159], [-2102533201, -261374260]]
FROZEN_DRAWS = [[6170237, 2713606, 13545258], [9657902, 13748589, 8023117]]
N = 1 << 17


def step(
    number: int = 0,
    seed: int = 1,
    workers: range = range(4),
    offsets: Mapping[str, int] | None = None,
) -> Step:
    return Step(number, seed, workers, offsets or {"w": 0})


def draw(
    number: int = 0,
    seed: int = 1,
    workers: range = range(4),
    site: str = "codec",
    n: int = N,
    shared: bool = False,
) -> Tensor:
    return step(number, seed, workers).noise(site, {"w": n}, CPU, shared).uniform()


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]).double())[0, 1])


def test_chunks_draw_what_the_whole_draws() -> None:
    noise = step().noise("codec", {"w": 1000}, CPU)
    whole = noise.uniform()
    parts = (slice(0, 1), slice(1, 640), slice(640, 1000))
    chunks = [unit_interval(noise.of(part).words(part.stop - part.start)) for part in parts]
    assert torch.equal(torch.cat(chunks, dim=1), whole)
    assert torch.equal(noise.uniform(), whole), "drawing changes nothing"


def test_a_worker_draws_the_same_in_any_process() -> None:
    assert torch.equal(draw(workers=range(2, 4), n=100), draw(n=100)[2:])


def test_a_shard_draws_the_same_in_any_process_and_others_than_those_of_other_workers() -> None:
    rows = step().worker_noise("codec", N, CPU).uniform()
    assert torch.equal(step(workers=range(2, 4)).worker_noise("codec", N, CPU).uniform(), rows[2:])
    assert all(abs(correlation(rows[i], rows[j])) < 0.02 for i in range(4) for j in range(i))


def test_a_parameter_draws_the_same_in_any_message() -> None:
    offsets = {"a": 0, "b": 10, "c": 17}
    both = step(offsets=offsets).noise("codec", {"a": 10, "c": 5}, CPU).uniform()
    alone = step(offsets=offsets).noise("codec", {"c": 5}, CPU).uniform()
    assert torch.equal(both[:, 10:], alone)


def as_keys(values: list[int]) -> Tensor:
    return torch.tensor([*map(signed, values)]).view(torch.int32).view(-1, 2)


@each("keys_of", [keys, count_keys])
def test_keys_are_mixed_of_their_arguments(keys_of: Callable[..., Tensor]) -> None:
    """In steps that follow one another, repeat, go on elsewhere as in a resumed run, or begin."""
    for seed in (0, 1, -5, 2**63 - 1, 2**64 - 1):
        for number in (0, 1, 2, 2, 7, 10**12, 3, 4, 0):
            base = (seed, site_number("codec"), number)
            shared = as_keys([mix(*base)])
            of_workers = as_keys([mix(*base, 1 + worker) for worker in range(2, 5)])
            assert torch.equal(keys_of(seed, "codec", number, None, CPU), shared)
            assert torch.equal(keys_of(seed, "codec", number, range(2, 5), CPU), of_workers)


def test_draws_are_those_of_earlier_versions() -> None:
    drawn = step(number=3, seed=7, workers=range(1, 3)).noise("codec", {"w": 3}, CPU)
    assert drawn.keys.tolist() == FROZEN_KEYS
    assert (drawn.uniform() * 2**24).int().tolist() == FROZEN_DRAWS


def test_a_replayed_step_counts_on() -> None:
    """What a CUDA graph records is the same for each step that follows another."""
    graph = make_fx(lambda x: x + count_keys(3, "codec", 6, range(2), CPU).sum())
    count_keys(3, "codec", 5, range(2), CPU)
    replay = graph(torch.zeros((), dtype=torch.int64))
    for number in (7, 8):
        total = replay(torch.zeros((), dtype=torch.int64))
        assert total == keys(3, "codec", number, range(2), CPU).sum()
    assert torch.equal(
        count_keys(3, "codec", 9, range(2), CPU), keys(3, "codec", 9, range(2), CPU)
    ), "the host says where it goes on"


def keyed_hash(x: int, key: int, inner_key: int) -> int:
    """Return hash-prospector's two-round hash with two keys, up to its last product."""
    x ^= key
    x = ((x ^ x >> 16) * 0x21F0AAAD + inner_key) & 0xFFFFFFFF
    return (x ^ x >> 15) * 0x735A2D97 & 0xFFFFFFFF


@each("key", [0, 1, 0x0123456789ABCDEF, 2**63, 2**64 - 1])
def test_draws_are_those_of_the_hash_with_two_keys(key: int) -> None:
    first, second = key & 0xFFFFFFFF, key >> 32
    index = [0, 1, 2, 1000, 2**31 - 1]
    hashes = [keyed_hash(i, first, second) for i in index]
    drawn = Noise(as_keys([key]), tuple((i, 1) for i in index)).uniform()
    assert drawn.tolist() == [[(h >> 8) / 2**24 for h in hashes]]


def uniformity(counts: Tensor) -> float:
    """Return chi-square per degree of freedom of counts that should be equal.

    For uniform draws it is 1 on average, and with 256 counts practically never above 1.4.
    """
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum() / (counts.numel() - 1))


@pytest.mark.parametrize("key", slow_but(range(2), range(6)))
def test_draws_of_one_key_are_uniform_alone_and_in_pairs(key: int) -> None:
    """Philox is as uniform; lowbias32's constants give 1.2 on average, 1.4 in pairs, up to 3."""
    noise = step(seed=100 + key, workers=range(1)).noise("codec", {"w": 10_000_000}, CPU)
    high = (noise.uniform()[0] * 256).int()
    pairs = (high[1:] >> 4) * 16 + (high[:-1] >> 4)
    assert uniformity(high.bincount(minlength=256).double()) < 1.35
    assert uniformity(pairs.bincount(minlength=256).double()) < 1.35


def test_shared_draws_are_the_same_on_all_workers() -> None:
    shared = draw(shared=True, n=100)
    assert shared.shape == (1, 100)
    assert torch.equal(shared, draw(shared=True, n=100, workers=range(3, 4)))
    assert not torch.equal(shared[0], draw(n=100)[0])


def test_draws_are_the_same_in_another_process(tmp_path: Path) -> None:
    lines = (
        "import torch; from gcbench.core.compressor import Step;"
        "print(Step(3, 7, range(2), {'w': 0}).noise('codec', {'w': 4}, "
        "torch.device('cpu')).uniform().tolist())"
    )
    with Copy(code, lines, folder=tmp_path) as copy:
        elsewhere = copy.wait(patience(60)).stdout
    assert json.loads(elsewhere) == draw(number=3, seed=7, workers=range(2), n=4).tolist()
    assert site_number("codec") == 4162507049


@each("n", [64, 4096, 1 << 16])
def test_no_worker_draws_a_permutation_of_another(n: int) -> None:
    """With a hash of (index xor key) alone, workers would do so if n is a power of two."""
    rows = draw(workers=range(8), n=n).sort(dim=1).values
    assert rows.unique(dim=0).shape[0] == 8


@each("change", ["worker", "step", "seed", "site", "neighbor"])
def test_draws_are_uncorrelated(change: str) -> None:
    base = draw()[0]
    other = {
        "worker": lambda: draw()[1],
        "step": lambda: draw(number=1)[0],
        "seed": lambda: draw(seed=2)[0],
        "site": lambda: draw(site="other")[0],
        "neighbor": lambda: base.roll(1),
    }[change]()
    assert abs(correlation(base, other)) < 5 / N**0.5
    assert (base == other).sum() <= 3
    assert abs(correlation((base - 0.5).abs(), (other - 0.5).abs())) < 5 / N**0.5


def test_no_two_of_many_workers_and_steps_are_correlated() -> None:
    n = 4096
    rows = torch.cat([draw(number=number, workers=range(16), n=n) for number in range(16)])
    matrix = torch.corrcoef(rows.double()) - torch.eye(256)
    assert matrix.abs().max() < 6 / n**0.5  # the largest of 32640 pairs
    assert matrix.std().item() == pytest.approx(n**-0.5, rel=0.05)


@each("seed", [0, 1, 2**63 - 1])
def test_draws_are_uniform(seed: int) -> None:
    for row in draw(seed=seed).double():
        assert row.min() >= 0 and row.max() < 1
        assert row.mean().item() == pytest.approx(0.5, abs=5 * (1 / 12 / N) ** 0.5)
        assert row.var().item() == pytest.approx(1 / 12, abs=5 * (1 / 180 / N) ** 0.5)
        assert chi_square(row, 256) < 255 + 5 * (2 * 255) ** 0.5


def test_pairs_of_neighbors_fill_the_square() -> None:
    for row in draw().double():
        cells = (row[0::2] * 16).floor() * 16 + (row[1::2] * 16).floor()
        assert chi_square(cells / 256, 256) < 255 + 5 * (2 * 255) ** 0.5


def test_low_bits_are_as_random_as_high_ones() -> None:
    """24 bits are used; each is one in half of the draws."""
    whole = (draw()[0].double() * 2**24).long()
    for bit in range(24):
        assert (whole >> bit & 1).double().mean().item() == pytest.approx(0.5, abs=2.5 / N**0.5)


def chi_square(values: Tensor, cells: int) -> float:
    counts = torch.histc(values, cells, 0, 1)
    expected = values.numel() / cells
    return float(((counts - expected) ** 2).sum() / expected)


def test_normal_draws_are_normal() -> None:
    x = step(workers=range(2)).noise("q", {"w": N}, CPU).normal().double()
    assert x.isfinite().all()
    for row in x:
        assert row.mean().item() == pytest.approx(0, abs=5 / N**0.5)
        assert row.var().item() == pytest.approx(1, abs=5 * (2 / N) ** 0.5)
        assert (row**4).mean().item() == pytest.approx(3, abs=5 * (96 / N) ** 0.5)
        uniform = torch.special.ndtr(row)
        assert chi_square(uniform, 256) < 255 + 5 * (2 * 255) ** 0.5
    assert abs(correlation(x[0], x[1])) < 5 / N**0.5


def test_keys_keep_all_64_bits() -> None:
    values = [0, 1, 2**32, 2**63, 2**64 - 1]
    assert as_keys(values).unique(dim=0).shape == (5, 2)
    drawn = Noise(as_keys(values), ((0, 50),)).uniform()
    assert drawn.unique(dim=0).shape[0] == 5


def test_similar_seeds_share_nothing() -> None:
    """Sums of seed, step and worker would collide."""
    tuples = [
        (seed, number, worker) for seed in range(8) for number in range(8) for worker in range(8)
    ]
    assert len({mix(*t) for t in tuples}) == len(tuples)
    assert mix(1) != mix(1, 0)
