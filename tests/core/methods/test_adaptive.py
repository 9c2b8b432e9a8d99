"""adapt_every: bits and ranks by tensor have the least error, and cost what the static ones do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import aggregate, build_method

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Compressor, Grads, State
from gcbench.core.wrappers.adaptive import least_error
from gcbench.runner.predict.payload import Payload

WORKERS, EVERY = 2, 10
SHAPES = {"large": (64, 64), "small": (64, 64), "vector": (64,)}
SCALES = {"large": 1.0, "small": 0.01, "vector": 0.1}


def of_scales(number: int) -> Grads:
    """Return noise whose tensors differ in scale alone."""
    draw = torch.Generator().manual_seed(number)
    return {k: torch.randn(WORKERS, *s, generator=draw) * SCALES[k] for k, s in SHAPES.items()}


def of_spectra(number: int) -> Grads:
    """Return matrices: the large one has a rank of 8 in all but a little noise, the small one 1."""
    noise, fixed = torch.Generator().manual_seed(number), torch.Generator().manual_seed(7)
    grads = of_scales(number)
    for name, rank in (("large", 8), ("small", 1)):
        n, m = SHAPES[name]
        left, right = (torch.randn(side, rank, generator=fixed) for side in (n, m))
        grads[name] = left @ right.T + 0.01 * torch.randn(WORKERS, n, m, generator=noise)
    return grads


def run(
    compressor: Compressor, make: Callable[[int], Grads], steps: int
) -> tuple[list[int], list[float], Aggregated]:
    """Return the bits that a worker sends and the squared error by step, and the last result."""
    comm, state, bits, errors = Comm(WORKERS), State(), [0], []
    for number in range(steps):
        grads = make(number)
        out = aggregate(compressor, grads, number=number, state=state, comm=comm)
        state = out.state
        bits.append(comm.meter.sent_bits[0])
        off = [out.update[k] - g.mean(0, keepdim=True) for k, g in grads.items()]
        errors.append(sum(float(x.square().sum()) for x in off))
    return np.diff(bits).tolist(), errors, out


def test_the_choice_is_the_best_of_all_that_fit() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        errors = draw.integers(0, 100, (4, 3)).tolist()
        costs = np.sort(draw.integers(1, 50, (4, 3))).tolist()
        budget = int(draw.integers(sum(c[0] for c in costs), sum(c[-1] for c in costs) + 1))
        found = least_error(errors, costs, budget)
        fitting = [
            sum(e[i] for e, i in zip(errors, choice, strict=True))
            for choice in product(range(3), repeat=4)
            if sum(c[i] for c, i in zip(costs, choice, strict=True)) <= budget
        ]
        assert sum(e[i] for e, i in zip(errors, found, strict=True)) == min(fitting)
        assert sum(c[i] for c, i in zip(costs, found, strict=True)) <= budget


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(-9, 9)), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_no_choice_is_worse_than_the_static_number(tensors: list[tuple[int, int]]) -> None:
    """Of tensors of any sizes and scales, for any static number, and never beyond its budget."""
    costs = [[bits * n for bits in range(2, 9)] for n, _ in tensors]
    errors = [[2.0**scale * n * 4.0**-bits for bits in range(2, 9)] for n, scale in tensors]
    for bits in range(2, 9):
        budget = bits * sum(n for n, _ in tensors)
        found = least_error(errors, costs, budget)
        static = sum(e[bits - 2] for e in errors)
        assert sum(e[i] for e, i in zip(errors, found, strict=True)) <= static
        assert sum(c[i] for c, i in zip(costs, found, strict=True)) <= budget


@pytest.mark.parametrize("sizes", [[30_001], [40_003] * 2, [50_021] * 3])
def test_tensors_of_one_law_and_odd_sizes_have_the_static_bits(sizes: list[int]) -> None:
    def make(number: int) -> Grads:
        draw = torch.Generator().manual_seed(number)
        return {str(i): torch.randn(2, n, generator=draw) for i, n in enumerate(sizes)}

    method = build_method("qsgd", bits=4, min_size=0, adapt_every=EVERY)
    _, _, out = run(method, make, 3)
    assert {int(x) for layer in out.state.layers() for x in layer.shared.values()} == {4}


def test_a_budget_that_nothing_fits_has_the_cheapest() -> None:
    assert least_error([[9, 1], [9, 1]], [[4, 8], [4, 8]], 3) == [0, 0]


@pytest.mark.parametrize("choice", ["eden", "qsgd"])
def test_large_values_get_bits_of_small_ones(choice: str) -> None:
    """From the third step on, with no more codes than before, and less than half of the error."""
    knobs = {"bits": 3, "bucket_size": 64, "min_size": 0}
    static, errors, _ = run(build_method(choice, **knobs), of_scales, 13)
    bits, adapted, out = run(build_method(choice, adapt_every=EVERY, **knobs), of_scales, 13)
    assert bits[:1] == static[:1] and adapted[:2] == errors[:2]
    choices = (8 if choice == "eden" else 7) * len(SHAPES)
    for number in range(1, 13):
        measured = 64 * choices + 32 if number % EVERY == 1 else 0
        rounded = 8 * 8 * 8  # the codes of each number of bits fill whole bytes
        assert 0.95 * static[number] < bits[number] - measured <= static[number] + rounded
        assert number < 2 or adapted[number] < 0.5 * errors[number]
    (layer,) = out.state.layers()
    found = {k: int(x) for k, x in layer.shared.items()}
    assert found["large"] > found["vector"] > found["small"]


def test_ranks_go_to_the_matrices_that_have_them() -> None:
    """The sum of a period is that of a static rank, and a probe in its last step included."""
    knobs = {"rank": 4, "min_ratio": 0, "error_feedback": False}
    static, errors, _ = run(build_method("powersgd", **knobs), of_spectra, 32)
    bits, adapted, out = run(build_method("powersgd", adapt_every=EVERY, **knobs), of_spectra, 32)
    assert bits[0] == static[0] and bits[1] == 32 * (2 * 8 * 128 + 64)
    assert sum(bits[12:32]) <= sum(static[12:32]) < 1.1 * sum(bits[12:32])
    assert sum(adapted[22:31]) < 0.5 * sum(errors[22:31])
    outer, inner = out.state.layers()
    assert int(outer.shared["large"]) > 4 > int(outer.shared["small"])
    assert {k: q.shape[1] for k, q in inner.shared.items()} == {"large": 8, "small": 8}


def test_a_step_that_is_not_finite_changes_no_choice() -> None:
    for choice, knobs in (("eden", {"bits": 2}), ("powersgd", {"error_feedback": False})):
        method = build_method(choice, adapt_every=EVERY, **knobs)
        _, _, out = run(method, of_scales, 11)
        state = out.state
        bad = of_scales(11)
        bad["large"][0, 0, 0] = torch.nan
        broken = aggregate(method, bad, number=11, state=state).state
        before, after = (next(s for s in x.layers()).shared for x in (state, broken))
        assert all(torch.equal(before[k], after[k]) for k in before)


def test_the_prediction_is_that_of_the_static_number() -> None:
    for choice, knobs in (("eden", {"bits": 2}), ("powersgd", {"rank": 2})):
        static, adaptive = (
            Payload(build_method(choice, adapt_every=every, **knobs), SHAPES).at(8)
            for every in ("null", 17)
        )
        assert adaptive == static


@pytest.mark.parametrize(
    ("choice", "knobs", "says"),
    [
        ("powersgd", {"rank": 1}, "no matrix can have a lower rank than 1; type rank=2"),
        ("eden", {"bits": 1}, "no tensor can have fewer bits than 1; type bits=2"),
        ("qsgd", {"bits": 2}, "no tensor can have fewer bits than 2; type bits=3"),
    ],
)
def test_the_least_number_leaves_nothing_to_choose(
    choice: str, knobs: dict[str, int], says: str
) -> None:
    with pytest.raises(ValueError, match=f"^adapt_every=50: {says}, or adapt_every=null$"):
        build_method(choice, adapt_every=50, **knobs)
