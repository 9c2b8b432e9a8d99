"""PowerSGD: exact on low rank, convergence to the best approximation, and a robust warm start."""

from __future__ import annotations

import itertools

import pytest
import torch
from method_cases import aggregate, flat, gradients
from nightly import each
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Grads, State, Step
from gcbench.core.methods.powersgd import PowerSGD, draw_q, shapes_of, step_by_step
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.wrappers import ErrorFeedback

pytestmark = pytest.mark.usefixtures("backend")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative_error(update: Tensor, grads: Tensor) -> float:
    mean = grads.double().mean(0)
    return float((update[0].double() - mean).norm() / mean.norm())


def test_steps_with_residuals_are_those_of_the_plain_function() -> None:
    """Up to rounding, and to the signs of columns, which updates and residuals do not have."""
    compressor, state = ErrorFeedback(PowerSGD(3)), State()
    first = randn(4, 30, 20)
    start = Step(0, 1, range(4), {"w": 0})  # the seed of `aggregate`
    q = draw_q({"w": first}, shapes_of({"w": first}, 3), start, 0).view(3, 20).T
    left = torch.zeros_like(first)
    for number in range(3):
        g = randn(4, 30, 20, seed=number)
        out = aggregate(compressor, {"w": g}, number=number, state=state)
        update, left, q = step_by_step(g + left, q)
        torch.testing.assert_close(out.update["w"][0], update, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out.state.per_worker["w"], left, rtol=1e-4, atol=1e-5)
        state = out.state


@each("rank", [1, 2, 4])
def test_a_gradient_of_low_rank_is_reproduced(rank: int) -> None:
    mean = randn(30, rank) @ randn(rank, 20, seed=1)
    noise = randn(4, 30, 20, seed=2)
    grads = {"w": mean + noise - noise.mean(0)}  # each worker's own gradient has full rank
    out = aggregate(PowerSGD(rank), grads)
    assert relative_error(out.update["w"], grads["w"]) < 1e-5


@each("rows", [1, 2, 3])
def test_rank_is_clipped_to_the_smaller_side(rows: int) -> None:
    """The update is then exact, for example for the two opposite rows of two classes."""
    g = randn(1, rows, 50)
    if rows == 2:
        g[:, 1] = -g[:, 0]
    out = aggregate(PowerSGD(7), {"w": g})
    assert out.state.shared["w"].shape == (1, rows, 50)
    assert relative_error(out.update["w"], g) < 1e-5


@each("rank", [2, 4])
@each("kind", ["equal rows", "equal columns", "two classes", "one row", "outer product"])
def test_rank_above_that_of_the_gradient_adds_nothing(kind: str, rank: int) -> None:
    """Dependent columns of P are not counted twice, at any step."""
    row, column = randn(1, 40), randn(30, 1, seed=1)
    g = {
        "equal rows": torch.ones(30, 1) @ row,
        "equal columns": column @ torch.ones(1, 40),
        "two classes": torch.tensor([[1.0], [-1.0]]) @ row,
        "one row": torch.eye(30)[:, 3:4] @ row,
        "outer product": column @ row,
    }[kind].unsqueeze(0)
    state = State()
    for number in range(5):
        out = aggregate(PowerSGD(rank), {"w": g}, number=number, state=state)
        state = out.state
        assert relative_error(out.update["w"], g) < 1e-5


def best_error(g: Tensor, rank: int) -> float:
    singular = torch.linalg.svdvals(g.double())
    return float(singular[rank:].square().sum().sqrt())


def test_without_warm_start_there_is_no_convergence() -> None:
    g, state, errors = randn(1, 40, 30), State(), []
    for number in range(20):
        out = aggregate(PowerSGD(2, warm_start=False), {"w": g}, number=number, state=state)
        state = out.state
        errors.append(relative_error(out.update["w"], g))
    assert len(set(errors)) == 20, "Q is drawn anew every step"
    assert min(errors[10:]) > 1.01 * best_error(g[0], 2) / g.norm().item()


# The best approximation


def falling(*shape: int, seed: int = 0) -> Tensor:
    """Return a matrix with singular values 1, 0.8, 0.64, ..."""
    u, s, v = torch.linalg.svd(randn(*shape, seed=seed), full_matrices=False)
    return (u * 0.8 ** torch.arange(float(s.shape[-1])).expand_as(s).unsqueeze(-2)) @ v


@each("rank", [1, 2, 4])
def test_more_iterations_come_nearer_to_the_best_approximation(rank: int) -> None:
    """The iterations are those of one step, which starts from random factors."""
    g = falling(1, 40, 30)
    best = best_error(g[0], rank)
    errors = []
    for iterations in (1, 2, 3, 6, 40):
        out = aggregate(PowerSGD(rank, warm_start=False, iterations=iterations), {"w": g})
        errors.append(float((out.update["w"] - g).double().norm()) / best)
    assert errors[0] > 1.02
    assert all(later < earlier + 1e-6 for earlier, later in itertools.pairwise(errors))
    assert errors[-1] == pytest.approx(1, abs=1e-4)


def test_iterations_in_a_step_are_those_of_many_steps_on_one_matrix() -> None:
    g, state = falling(2, 40, 30), State()
    for number in range(3):
        out = aggregate(PowerSGD(2), {"w": g}, number=number, state=state)
        state = out.state
    at_once = aggregate(PowerSGD(2, iterations=3), {"w": g})
    torch.testing.assert_close(at_once.update["w"], out.update["w"], rtol=1e-4, atol=1e-5)


@each("rank", [1, 2, 7])
def test_svd_is_the_truncated_one_of_the_mean(rank: int) -> None:
    """Two matrices have the same shape, and one has a side shorter than the largest rank."""
    grads = {"a": randn(3, 12, 9), "b": randn(3, 12, 3, 3, seed=1), "c": randn(3, 4, 20, seed=2)}
    out, comm = aggregate(PowerSGD(rank, svd=True), grads), Comm(3)
    for name, g in grads.items():
        u, s, vt = torch.linalg.svd(g.mean(0).reshape(g.shape[1], -1).double(), full_matrices=False)
        expected = (u[:, :rank] * s[:rank]) @ vt[:rank]
        torch.testing.assert_close(
            out.update[name][0].flatten(1).double(), expected, rtol=1e-4, atol=1e-5
        )
    aggregate(PowerSGD(rank, svd=True), grads, comm=comm)
    assert comm.meter.sent_bits == [32 * (2 * 12 * 9 + 4 * 20)] * 3


@each("exponent", [-60, 60])
def test_iterations_neither_under_nor_overflow(exponent: int) -> None:
    g = randn(2, 20, 30)
    plain = aggregate(PowerSGD(2, iterations=4), {"w": g}).update["w"]
    scaled = aggregate(PowerSGD(2, iterations=4), {"w": g * 2.0**exponent}).update["w"]
    torch.testing.assert_close(scaled / 2.0**exponent, plain, rtol=1e-4, atol=1e-5)


def test_what_is_sent_by_an_svd_is_a_projection_of_each_worker() -> None:
    out = aggregate(PowerSGD(2, svd=True), {"w": randn(4, 20, 30)})
    sent = out.sent()["w"]
    assert torch.linalg.matrix_rank(sent, rtol=1e-5).tolist() == [2] * 4
    torch.testing.assert_close(sent.mean(0), out.update["w"][0], rtol=1e-4, atol=1e-5)


def test_one_worker_with_the_mean_gradient_does_what_all_do() -> None:
    method, of_all, of_one = PowerSGD(2), State(), State()
    for number in range(3):
        grads = {k: g for k, g in gradients(range(4), number).items() if g.dim() > 2}
        means = {k: g.mean(0, keepdim=True) for k, g in grads.items()}
        everyone = aggregate(method, grads, number=number, state=of_all)
        alone = aggregate(method, means, number=number, state=of_one, comm=Comm(1))
        of_all, of_one = everyone.state, alone.state
        assert (flat(everyone.update) - flat(alone.update)).norm() < 1e-5 * flat(means).norm()


def test_matrices_of_one_shape_have_norms_of_their_own() -> None:
    """Matrices of rank 1, with magnitudes from 1e-4 to 1e6, are all reproduced."""
    grads = {
        f"w{i}": 10.0 ** (2 * i - 4) * randn(1, 30, 1, seed=i) @ randn(1, 1, 20, seed=100 + i)
        for i in range(6)
    }
    state = State()
    for number in range(3):
        out = aggregate(PowerSGD(1), grads, number=number, state=state)
        state = out.state
        for name, g in grads.items():
            assert relative_error(out.update[name], g) < 1e-5, name


def test_matrices_of_one_shape_do_not_mix() -> None:
    """Matrices in a batch have the same updates as alone, whatever tensors are between them."""
    grads = {
        "a": randn(2, 8, 9),
        "between": randn(2, 5, 6, seed=1),
        "b": randn(2, 8, 9, seed=2),
        "c": randn(2, 9, 8, seed=3),
    }
    offsets_matter = aggregate(PowerSGD(2), grads)
    for name, g in grads.items():
        q = State(shared={name: randn(1, 2, g[0, 0].numel(), seed=5)})
        alone = aggregate(PowerSGD(2), {name: g}, state=q)
        all_qs = {
            k: randn(1, 2, x[0, 0].numel(), seed=5 if k == name else 6) for k, x in grads.items()
        }
        together = aggregate(PowerSGD(2), grads, state=State(shared=all_qs))
        torch.testing.assert_close(together.update[name], alone.update[name], rtol=1e-4, atol=1e-6)
    assert list(offsets_matter.update) == list(grads)


def test_parameters_start_from_different_factors() -> None:
    g = randn(1, 8, 9)
    shared = aggregate(PowerSGD(2), {"a": g, "b": g}).update
    assert not torch.allclose(shared["a"], shared["b"], rtol=1e-2)


@each("where", ["whole gradient", "one row", "one of two matrices"])
def test_a_gradient_of_zeros_does_not_end_the_warm_start(where: str) -> None:
    u, _, v = torch.linalg.svd(randn(40, 30), full_matrices=False)
    g = ((u * 0.5 ** torch.arange(30.0)) @ v).unsqueeze(0)
    zero = g.clone()
    zero[:, 1 if where == "one row" else slice(None)] = 0
    state, errors = State(), []
    for number in range(14):
        hole = number in (2, 3, 4)
        grads = {
            "a": zero if hole else g,
            "b": g if where == "one of two matrices" else (zero if hole else g),
        }
        out = aggregate(PowerSGD(2), grads, number=number, state=state)
        state = out.state
        assert all(u.isfinite().all() for u in out.update.values())
        if hole and where != "one row":
            assert not out.update["a"].any()
        errors.append(relative_error(out.update["a"], g) / (best_error(g[0], 2) / g.norm().item()))
    assert errors[5] <= errors[0] + 1e-6, "the first step after is no worse than the very first"
    assert errors[-1] == pytest.approx(1, abs=1e-3)


@each("exponent", [-80, 80])
def test_the_scale_of_gradients_does_not_matter(exponent: int) -> None:
    """A power of two scales every update exactly, though Q grows as the gradients do."""
    plain, scaled = State(), State()
    for number in range(4):
        g = randn(2, 20, 30, seed=number)
        a = aggregate(PowerSGD(2), {"w": g}, number=number, state=plain)
        b = aggregate(PowerSGD(2), {"w": g * 2.0**exponent}, number=number, state=scaled)
        plain, scaled = a.state, b.state
        assert torch.equal(a.update["w"] * 2.0**exponent, b.update["w"])


def test_both_residuals_give_the_same_updates_on_early_steps() -> None:
    projected = build(PowerSGD(2, residual="own"), error_feedback=True, min_dims=2)
    aggregated = build(PowerSGD(2, residual="aggregated"), error_feedback=True, min_dims=2)
    states = [State(), State()]
    for number in range(5):
        grads = gradients(range(4), number)
        outs = [
            aggregate(c, grads, number=number, state=s)
            for c, s in zip((projected, aggregated), states, strict=True)
        ]
        states = [out.state for out in outs]
        a, b = (flat(out.update) for out in outs)
        assert (a - b).norm() < 1e-4 * a.norm()
        residuals = [flat(state.per_worker) for state in states]
        assert (residuals[0].mean(0) - residuals[1].mean(0)).norm() < 1e-4 * residuals[0].mean(
            0
        ).norm()
    assert (residuals[0] - residuals[1]).norm() > 0.1 * residuals[0].norm(), (
        "but those of the workers differ"
    )


def test_own_residual_is_orthogonal_to_what_was_sent() -> None:
    """What is sent is a projection of each worker's gradient."""
    grads = {"w": randn(4, 20, 30)}
    sent = aggregate(PowerSGD(2), grads).sent()["w"].double()
    rest = grads["w"].double() - sent
    for k in range(4):
        assert abs(float((sent[k] * rest[k]).sum())) < 1e-4
    assert torch.linalg.matrix_rank(sent[0], rtol=1e-5) == 2


def test_tensors_become_matrices_by_their_first_dimension() -> None:
    """r (n + m) floats are sent, where n is the number of output channels."""
    grads: Grads = {
        "conv": randn(1, 6, 4, 3, 3),
        "matrix": randn(1, 10, 12, seed=1),
        "vector": randn(1, 9, seed=2),
    }
    comm = Comm(1)
    out = aggregate(PowerSGD(2), grads, comm=comm)
    facts = {k: q.shape for k, q in out.state.shared.items()}
    assert facts == {"conv": (1, 2, 36), "matrix": (1, 2, 12), "vector": (1, 1, 1)}
    assert comm.meter.sent_bits == [32 * (2 * (6 + 36) + 2 * (10 + 12) + (9 + 1))]


def test_the_best_approximation_has_no_iterations() -> None:
    with pytest.raises(ValueError, match="type only one"):
        PowerSGD(1, iterations=3, svd=True)
