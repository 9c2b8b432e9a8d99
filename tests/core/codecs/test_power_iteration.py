"""C++ and PyTorch compute the same products, whatever the number of workers or threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from backends import use
from nightly import each
from torch import Tensor

from gcbench.core.codecs import power_iteration
from gcbench.core.codecs.kernels import Backend, use_backend
from gcbench.core.codecs.low_rank import Shape, Shapes
from gcbench.core.codecs.power_iteration import (
    add_times,
    orthogonalize,
    product,
    product_and_rest,
    ps_of,
    qs_of,
    restart,
    stack,
    times,
    transposed_times,
    unstack,
)

# With and without whole cache lines, whole groups of four rows, and several tiles. The three
# matrices of (130, 65) and the two of (1, 4) can be stacked.
SIDES = [
    (1, 1),
    (1, 40),
    (40, 1),
    (7, 33),
    (64, 27),
    (130, 64),
    (64, 5000),
    (3, 16),
    (5, 9001),
    (130, 65),
    (130, 65),
    (130, 65),
    (1, 4),
    (1, 4),
]


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    yield from use("native")


def shapes_of(rank: int) -> Shapes:
    return tuple(Shape(n, m, min(rank, n, m)) for n, m in SIDES)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def matrices(workers: int, seed: int) -> list[Tensor]:
    return [randn(workers, n, m, seed=100 * seed + i) for i, (n, m) in enumerate(SIDES)]


def step(workers: int, rank: int, rows: slice = slice(None)) -> list[list[Tensor]]:
    """Return the sums M, P, orthonormal P, each worker's Q, the updates and the rests.

    `rows` are the workers that are in this process.
    """
    shapes = shapes_of(rank)
    gs, es = ([x[rows] for x in matrices(workers, seed)] for seed in (1, 2))
    q = randn(1, sum(s.r * s.m for s in shapes), seed=5)
    ms, p = add_times(gs, es, 0.5, q, shapes)
    orthonormal = orthogonalize(randn(1, p.shape[1], seed=6), shapes)
    worker_q = transposed_times(ms, orthonormal, shapes)
    sums = [m.clone() for m in unstack(ms)]
    own_p = torch.cat([(1 + worker) * orthonormal for worker in range(workers)])[rows]
    updates = product_and_rest(orthonormal, q, own_p, worker_q, ms, shapes)
    return [
        sums,
        ps_of(p, shapes),
        ps_of(orthonormal, shapes),
        qs_of(worker_q, shapes),
        unstack(updates),
        unstack(ms),
    ]


@each("rank", [1, 2, 3, 4, 5, 7, 8])
@each("workers", [1, 3])
def test_both_ways_are_equal_up_to_rounding(workers: int, rank: int) -> None:
    computed = step(workers, rank)
    use_backend("eager")
    for name, ours, theirs in zip(
        ("M", "P", "orthonormal", "Q", "update", "rest"), computed, step(workers, rank), strict=True
    ):
        for shape, a, b in zip(SIDES, ours, theirs, strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-4, atol=1e-4, msg=lambda m, at=(name, shape): f"{at}: {m}"
            )


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_parts_of_workers_may_lie_apart(backend: Backend) -> None:
    """A worker's gradients are contiguous, so that a matrix is far from the next worker's."""
    use_backend(backend)
    shapes = shapes_of(2)
    together = [matrices(3, seed) for seed in (1, 2)]
    apart = [
        [
            part.view(-1, n, m)
            for part, (n, m) in zip(
                torch.cat([x.flatten(1) for x in xs], dim=1).split([n * m for n, m in SIDES], 1),
                SIDES,
                strict=True,
            )
        ]
        for xs in together
    ]
    q = randn(1, sum(s.r * s.m for s in shapes), seed=5)
    (ms, p), (expected_ms, expected_p) = (
        add_times(*both, 0.5, q, shapes) for both in (apart, together)
    )
    assert torch.equal(p, expected_p) and all(map(torch.equal, ms, expected_ms))


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_stacks_have_the_products_of_their_matrices(
    workers: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend("eager")
    alone = step(workers, rank)
    monkeypatch.setattr(power_iteration, "STACKED_ON", {"cpu"})
    stacks = stack(matrices(workers, 1), shapes_of(rank))
    assert [len(ms) for ms in stacks] == [1] * 9 + [3, 2]
    for ours, theirs in zip(step(workers, rank), alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@each("rank", [2, 5])
def test_a_worker_alone_has_the_same_bits_as_among_others(rank: int) -> None:
    together, alone = step(3, rank), [step(3, rank, slice(k, k + 1)) for k in range(3)]
    for kind in (0, 1, 3, 5):
        for i in range(len(SIDES)):
            assert all(torch.equal(together[kind][i][k], alone[k][kind][i][0]) for k in range(3))
    assert all(torch.equal(a, b) for a, b in zip(together[4], alone[0][4], strict=True))


def test_threads_do_not_change_a_bit() -> None:
    one = step(2, 5)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        three = step(2, 5)
    finally:
        torch.set_num_threads(threads)
    assert all(
        torch.equal(a, b)
        for x, y in zip(one, three, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_products_are_those_of_matrices() -> None:
    """Products by the definition are computed in float64."""
    shapes, ms = shapes_of(3), matrices(2, 1)
    p, q = (
        randn(1, sum(s.r * side for s, side in zip(shapes, sides, strict=True)), seed=7)
        for sides in zip(*SIDES, strict=True)
    )
    for m, computed, factor in zip(
        ms, ps_of(times(stack(ms, shapes), q, shapes), shapes), qs_of(q, shapes), strict=True
    ):
        torch.testing.assert_close(
            computed.double(), (m.double() @ factor[0].double().mT).mT, rtol=1e-4, atol=1e-4
        )
    for m, computed, factor in zip(
        ms,
        qs_of(transposed_times(stack(ms, shapes), p, shapes), shapes),
        ps_of(p, shapes),
        strict=True,
    ):
        torch.testing.assert_close(
            computed.double(), factor[0].double() @ m.double(), rtol=1e-4, atol=1e-4
        )
    for u, a, b in zip(
        unstack(product(p, q, shapes)), ps_of(p, shapes), qs_of(q, shapes), strict=True
    ):
        torch.testing.assert_close(u.double(), a.double().mT @ b.double(), rtol=1e-4, atol=1e-4)


def test_a_shared_factor_is_subtracted_from_all() -> None:
    shapes, ms = shapes_of(2), matrices(3, 1)
    before = [m.clone() for m in ms]
    p, q = (
        randn(1, sum(s.r * side for s, side in zip(shapes, sides, strict=True)), seed=8)
        for sides in zip(*SIDES, strict=True)
    )
    stacks = stack(ms, shapes)
    updates = product_and_rest(p, q, p, q, stacks, shapes)
    for m, old, update in zip(unstack(stacks), before, unstack(updates), strict=True):
        torch.testing.assert_close(m, old - update, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_columns_without_a_direction_are_drawn_anew(backend: Backend) -> None:
    use_backend(backend)
    shapes = (Shape(5, 20, 3), Shape(4, 6, 1))
    qs = [randn(1, 3, 20), randn(1, 1, 6, seed=1)]
    qs[0][0, 1] = 0
    fresh = randn(1, 66, seed=2)
    first, second = qs_of(restart(qs, fresh, shapes), shapes)
    new = qs_of(fresh, shapes)
    assert torch.equal(first[0, 1], new[0][0, 1])
    assert torch.equal(first[0, ::2], qs[0][0, ::2] / qs[0][0, ::2].abs().amax(1, keepdim=True))
    assert second.abs().max() == 1


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_column_that_is_not_finite_is_drawn_anew(backend: Backend) -> None:
    """Otherwise no later product would be finite."""
    use_backend(backend)
    shapes = (Shape(5, 20, 2),)
    for bad in (torch.nan, torch.inf):
        q = randn(1, 2, 20)
        q[0, 1, 7] = bad
        fresh = randn(1, 40, seed=2)
        assert torch.equal(restart([q], fresh, shapes)[0, 20:], fresh[0, 20:])


@each("kind", ["equal", "multiples", "nearly equal", "zeros between", "two classes"])
@each("magnitude", [1e-30, 1.0, 1e30])
def test_columns_become_orthonormal_or_zero(kind: str, magnitude: float) -> None:
    """This includes dependent columns, of which none is counted twice."""
    base = randn(1, 50)
    p = {
        "equal": torch.ones(3, 50),
        "multiples": base * torch.tensor([[1.0], [3.0], [-0.7]]),
        "nearly equal": base + 1e-5 * randn(3, 50, seed=1),
        "zeros between": randn(3, 50) * torch.tensor([[1.0], [0.0], [1.0]]),
        "two classes": torch.tensor([0.7, -0.7]).repeat(25) * torch.tensor([[1.3], [-0.7], [2.1]]),
    }[kind] * magnitude
    q = orthogonalize(p.view(1, 150), (Shape(50, 60, 3),)).view(3, 50).double()
    kept = (q != 0).any(1)
    torch.testing.assert_close(q @ q.mT, torch.diag(kept.double()), rtol=0, atol=1e-6)
    unit = p.double() / p.double().abs().max()
    assert float((unit - unit @ q.mT @ q).norm() / unit.norm()) < 1e-5
    assert kept[0]
    if kind in ("nearly equal", "zeros between"):
        assert kept.tolist() == [True, kind == "nearly equal", True]
