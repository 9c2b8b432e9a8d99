"""What every choice of conf/compressor owes its callers; a new file there is tested from its first day.

The tables in this file name every choice, so that one which no test applies to is a failure and not a silence.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from method_cases import (
    ALL,
    CHOICES,
    SHAPES,
    aggregate,
    built,
    composed,
    compressor_of,
    flat,
    gradients,
    offsets,
    shapes_of,
    variants,
)
from torch import Tensor

from gcbench.comm import VirtualComm
from gcbench.compressors import Aggregated, Compressor, Grads, State, Step

each_choice = pytest.mark.parametrize("choice", CHOICES)
each_variant = pytest.mark.parametrize(("choice", "variant"), ALL)

# Relative rounding of what travels, for choices that promise the mean itself.
EXACT = {"none": 1e-6, "fp16": 2.0**-10, "bf16": 2.0**-7}
UNBIASED = {"qsgd", "orq", "linear", "qsgd_levels", "unbiased_lowrank", "maxnorm", "maxnorm_multiscale"}
CONTRACTIVE = {
    "none",
    "fp16",
    "bf16",
    "qsgd",
    "powersgd",
    "scaled_sign",
    "sign_norm",
    "onebit",
    "top_k",
    "random_k",
    "random_block",
    "qsgd_levels",
    "bingrad_pb",
    "bingrad_b",
}
MEAN_LINEAR = {"none", "fp16", "bf16", "powersgd", "random_k", "random_block", "unbiased_lowrank"}
RANDOM = {
    "qsgd",
    "powersgd",
    "ecqsgd",
    "random_k",
    "random_block",
    "orq",
    "linear",
    "qsgd_levels",
    "terngrad",
    "bingrad_pb",
    "maxnorm",
    "maxnorm_multiscale",
    "global_randk",
    "global_randk_multiscale",
    "unbiased_lowrank",
    "atomo",
}
DETERMINISTIC = {"none", "fp16", "bf16", "scaled_sign", "sign_norm", "onebit", "top_k", "bingrad_b", "signum"}
NEVER_ZERO = {"signum"}  # the sign of a zero is one of the two that there are
HUGE = {"fp16": 6e4}  # the largest that fits what travels; 1e30 for the others


def bare(choice: str) -> Compressor:
    """All tensors, no memory, small buckets."""
    return compressor_of(choice, "all tensors" if "all tensors" in variants(choice) else "as it is")


def test_the_tables_name_every_choice() -> None:
    """A new file in conf/compressor: say above what it promises."""
    assert set(CHOICES) == RANDOM | DETERMINISTIC


@pytest.mark.parametrize(
    ("promise", "table"),
    [("exact", set(EXACT)), ("unbiased", UNBIASED), ("contractive", CONTRACTIVE), ("mean_linear", MEAN_LINEAR)],
)
def test_the_tables_name_every_promise(promise: str, table: set[str]) -> None:
    assert {choice for choice in CHOICES if getattr(without_memory(choice).properties, promise)} == table


def without_memory(choice: str) -> Compressor:
    settings = {"bucket_size": 16, "min_size": 0, "error_feedback": False}
    return built(choice, **{k: v for k, v in settings.items() if k in composed(choice)})


@each_choice
def test_every_choice_is_tried_with_every_key_it_has(choice: str) -> None:
    assert "as it is" in variants(choice)
    assert {"error feedback", "ecq"} <= set(variants(choice)) or "error_feedback" not in composed(choice)


# Shapes and values


@each_variant
def test_update_looks_like_the_gradients(choice: str, variant: str) -> None:
    compressor, state, grads = compressor_of(choice, variant), State(), gradients(range(4), 0)
    for number in range(2):
        before = {k: g.clone() for k, g in grads.items()}
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        sent = out.sent()
        assert list(out.update) == list(sent) == list(grads)
        for name, g in grads.items():
            assert out.update[name].shape == (1, *SHAPES[name])
            assert out.update[name].dtype == torch.float32
            assert sent[name].shape in (g.shape, (1, *SHAPES[name]))
            assert torch.equal(g, before[name]), "the gradients are the caller's"


@each_variant
def test_state_is_never_changed_in_place(choice: str, variant: str) -> None:
    """An old state must give the same step again."""
    compressor = compressor_of(choice, variant)
    state = aggregate(compressor, gradients(range(4), 0)).state
    once = aggregate(compressor, gradients(range(4), 1), number=1, state=state)
    once.sent()
    again = aggregate(compressor, gradients(range(4), 1), number=1, state=state)
    assert_same(once, again)


def assert_same(a: Aggregated, b: Aggregated) -> None:
    assert all(torch.equal(a.update[k], b.update[k]) for k in a.update)
    for one, other in zip(a.state.layers(), b.state.layers(), strict=True):
        for x, y in ((one.shared, other.shared), (one.per_worker, other.per_worker)):
            assert list(x) == list(y)
            assert all(torch.equal(x[k], y[k]) for k in x)


@each_variant
def test_state_survives_being_taken_apart(choice: str, variant: str) -> None:
    compressor, state = compressor_of(choice, variant), State()
    for number in range(2):
        state = aggregate(compressor, gradients(range(4), number), number=number, state=state).state
    layers = [
        ({k: x.clone() for k, x in layer.shared.items()}, {k: x.clone() for k, x in layer.per_worker.items()})
        for layer in state.layers()
    ]
    restored = State.of_layers(layers)
    grads = gradients(range(4), 2)
    assert_same(
        aggregate(compressor, grads, number=2, state=state),
        aggregate(compressor, grads, number=2, state=restored),
    )


@each_variant
def test_same_arguments_give_the_same_bits(choice: str, variant: str) -> None:
    grads = gradients(range(4), 0)
    first = aggregate(compressor_of(choice, variant), grads, number=3, seed=5)
    torch.manual_seed(99)  # no hidden stream
    assert_same(first, aggregate(compressor_of(choice, variant), grads, number=3, seed=5))


@each_choice
def test_another_seed_gives_other_bits_where_there_is_chance(choice: str) -> None:
    grads = gradients(range(4), 0)
    first = flat(aggregate(bare(choice), grads, seed=5).update)
    second = flat(aggregate(bare(choice), grads, seed=6).update)
    assert torch.equal(first, second) == (choice in DETERMINISTIC)


ODD_INPUTS = {
    "zeros": lambda choice, shape: torch.zeros(4, *shape),
    "denormals": lambda choice, shape: torch.randn(4, *shape) * 1e-41,
    "one huge value": lambda choice, shape: _with_one(torch.randn(4, *shape), HUGE.get(choice, 1e30)),
    "one value": lambda choice, shape: _with_one(torch.zeros(4, *shape), 1.0),
    "tiny": lambda choice, shape: torch.randn(4, *shape) * 1e-30,
}


def _with_one(x: Tensor, value: float) -> Tensor:
    x.view(-1)[x.numel() // 2] = value
    return x


@pytest.mark.parametrize("kind", ODD_INPUTS)
@each_variant
def test_odd_gradients_give_finite_updates_of_the_right_shape(choice: str, variant: str, kind: str) -> None:
    """Tensors of 1 value, of a prime number, of one bucket and one more."""
    torch.manual_seed(0)
    shapes = {
        "one": (1,),
        "scalar": (),
        "prime": (31,),
        "17": (17,),
        "16": (4, 4),
        "column": (7, 1),
        "row": (1, 7),
        "cube": (3, 5, 7),
    }
    grads = {k: ODD_INPUTS[kind](choice, shape) for k, shape in shapes.items()}
    compressor, state = compressor_of(choice, variant), State()
    for number in range(3):
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        assert shapes_of(out.update) == shapes
        assert all(u.isfinite().all() for u in out.update.values())
        if kind == "zeros" and choice not in NEVER_ZERO:
            assert not flat(out.update).any()


@each_choice
@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 16, 17, 512, 513])
def test_a_single_tensor_of_any_length(choice: str, n: int) -> None:
    grads = {"w": torch.randn(2, n, generator=torch.Generator().manual_seed(n))}
    update = aggregate(bare(choice), grads).update
    assert update["w"].shape == (1, n) and update["w"].isfinite().all()


# Promises


@pytest.mark.parametrize("choice", EXACT)
def test_exact_means_the_mean_of_the_gradients(choice: str) -> None:
    grads = gradients(range(4), 0)
    update = aggregate(bare(choice), grads).update
    tolerance = EXACT[choice] * flat(grads).abs().amax().item()
    torch.testing.assert_close(flat(update)[0], flat(grads).mean(0), rtol=0, atol=tolerance)


UNBIASED_VARIANTS = {
    "all tensors",
    "small tensors whole",
    "l2",
    "other levels",
    "other level count",
    "per layer",
    "many scales",
}
UNBIASED_CASES = [key for key in ALL if key[0] in UNBIASED and key[1] in UNBIASED_VARIANTS] + [("atomo", "drawn once")]


@pytest.mark.parametrize(("choice", "variant"), UNBIASED_CASES)
def test_unbiased_means_that_errors_cancel(choice: str, variant: str) -> None:
    """The mean of N updates errs by the noise of one over sqrt N, in all directions and along the gradient."""
    compressor, grads = compressor_of(choice, variant), gradients(range(2), 0)
    assert compressor.properties.unbiased
    assert_unbiased(compressor, grads, repeats=600)


def assert_unbiased(compressor: Compressor, grads: Grads, repeats: int) -> None:
    mean = flat(grads).mean(0)
    errors = torch.cat([flat(aggregate(compressor, grads, number=number).update) for number in range(repeats)]) - mean
    noise = errors.square().sum(1).mean() / repeats
    assert errors.mean(0).square().sum() < 2 * noise
    along = errors @ mean
    assert along.mean().abs() < 5 * along.std() / repeats**0.5


def vectors(n: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    spike, few = torch.zeros(n), torch.zeros(n)
    spike[n // 3], few[:: n // 7] = -3, torch.arange(len(few[:: n // 7])) + 1.0
    quarter = torch.full((n,), 0.25 / 7)  # between two levels of 7
    quarter[0] = 1
    return {
        "random": torch.randn(n, generator=generator),
        "heavy tails": torch.randn(n, generator=generator) ** 5,
        "flat": torch.full((n,), 0.7),
        "alternating": torch.full((n,), 0.7) * (1 - 2 * (torch.arange(n) % 2)),
        "spike": spike,
        "few": few,
        "falling": 0.9 ** torch.arange(n).clamp_max(90),
        "between levels": quarter,
    }


@pytest.mark.parametrize("kind", vectors(156))
@pytest.mark.parametrize("choice", sorted(CONTRACTIVE))
def test_contractive_means_that_the_error_is_smaller_than_the_gradient(choice: str, kind: str) -> None:
    """Of each worker's own; PowerSGD's factors may miss a gradient altogether, but never add to it."""
    compressor = without_memory(choice)
    rows = torch.stack([vectors(156)[kind], vectors(156)["random"]])
    grads = {"w": rows.view(2, 12, 13)}
    errors = []
    for number in range(40):
        sent = flat(aggregate(compressor, grads, number=number).sent())
        errors.append((flat(grads) - sent).square().sum(1))
    share = torch.stack(errors).mean(0) / flat(grads).square().sum(1)
    assert share.max() < 1 + (1e-6 if choice == "powersgd" else 0)


def test_contractive_is_promised_by_a_choice_without_memory() -> None:
    """Memory and clipping promise nothing, as what they send is no function of the gradient."""
    for choice, variant in ALL:
        if variant in ("error feedback", "ecq", "clipped norm"):
            promises = compressor_of(choice, variant).properties
            assert not (promises.contractive or promises.unbiased or promises.exact), (choice, variant)


@pytest.mark.parametrize(("choice", "variant"), [key for key in ALL if compressor_of(*key).properties.mean_linear])
def test_mean_linear_means_that_rows_count_by_their_mean(choice: str, variant: str) -> None:
    compressor, of_rows, of_means = compressor_of(choice, variant), State(), State()
    tolerance = EXACT.get(choice, 1e-5) if choice != "none" else 1e-5
    for number in range(3):
        grads = gradients(range(4), number)
        means = {k: g.mean(0, keepdim=True) for k, g in grads.items()}
        rows = aggregate(compressor, grads, number=number, state=of_rows)
        replicated = aggregate(compressor, means, number=number, state=of_means, comm=VirtualComm(1))
        of_rows, of_means = rows.state, replicated.state
        error = (flat(rows.update) - flat(replicated.update)).norm()
        assert error <= max(tolerance, 1e-5) * flat(means).norm()


def test_mean_linear_is_promised_by_the_right_choices() -> None:
    assert {choice for choice, variant in ALL if compressor_of(choice, variant).properties.mean_linear} == MEAN_LINEAR


PARTS = [("conv", "scalar", "twin", "one"), ("conv bias", "matrix", "row")]


@each_variant
def test_scope_says_whether_tensors_depend_on_each_other(choice: str, variant: str) -> None:
    """Some tensors alone, at their places in the model: the same update for them where the scope is a tensor."""
    compressor = compressor_of(choice, variant)
    of_all = updates_of(compressor, list(SHAPES))
    errors = [
        ((part[name] - whole[name]).norm() / whole[name].norm().clamp_min(1e-30)).item()
        for names in PARTS
        for part, whole in zip(updates_of(compressor, names), of_all, strict=True)
        for name in names
    ]
    assert (max(errors) > 1e-4) == (compressor.properties.scope == "global")


def updates_of(compressor: Compressor, names: Sequence[str]) -> list[Grads]:
    """Of three steps, in the second of which one tensor is much larger than the others."""
    state, found = State(), []
    for number in range(3):
        grads = gradients(range(4), number)
        grads["conv"] *= 30 if number == 1 else 1
        step = Step(number, 1, range(4), offsets(SHAPES))
        out = compressor.aggregate({k: grads[k] for k in names}, state, VirtualComm(4), step)
        state = out.state
        found.append(out.update)
    return found
