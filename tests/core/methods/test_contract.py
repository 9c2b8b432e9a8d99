"""The contract that every choice of conf/compressor must keep; new files are tested automatically.

Promises are what a method's `properties` say.
"""

from __future__ import annotations

import pytest
import torch
from method_cases import (
    ALL,
    CHOICES,
    DIFFERENT,
    FEW,
    VARIANTS,
    WORKERS,
    aggregate,
    build_unchecked,
    compressor_of,
    flat,
    gradients,
    keys_of,
    variants,
)
from nightly import loop_over, slow_but
from torch import Tensor

from gcbench.core.compressor import Compressor, State
from gcbench.core.methods.sign import ScaledSign
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.virtual import is_direction
from gcbench.runner.check.conservation import check_conserves
from gcbench.runner.check.contract import (
    LENGTHS,
    ODD_INPUTS,
    check_length,
    check_odd_input,
    check_same_bits,
    check_shapes,
    check_state_is_pure,
    check_state_restores,
    largest_sent,
)
from gcbench.runner.check.promises import (
    VECTORS,
    check_contractive,
    check_direction,
    check_divisible,
    check_exact,
    check_mean_linear,
    check_scope,
    check_unbiased,
    rounding_of_sums,
)

each_choice = pytest.mark.parametrize("choice", CHOICES)
few_variants = loop_over(FEW, ALL)
# These wrappers do the same around every method, so that they are tried with one method.
WRAPPED = {"small tensors whole", "error feedback", "clipped values", "dense at first"}
CODES = [
    (choice, variant) for choice, variant in DIFFERENT if choice == "qsgd" or variant not in WRAPPED
]
HARDEST = {"zeros", "one huge value"}  # every variant is tried with these


def without_error_feedback(choice: str) -> Compressor:
    settings = {"bucket_size": 16, "min_size": 0, "error_feedback": False}
    keys = keys_of(choice)
    return build_unchecked(choice, {k: v for k, v in settings.items() if k in keys})


# What the choices promise; the tests below check that they keep it.
PROMISES = {choice: without_error_feedback(choice).properties for choice in CHOICES}
EXACT = {choice for choice, promises in PROMISES.items() if promises.exact}
UNBIASED = {choice for choice, promises in PROMISES.items() if promises.unbiased}
CONTRACTIVE = {choice for choice, promises in PROMISES.items() if promises.contractive}
MEAN_LINEAR = {choice for choice, promises in PROMISES.items() if promises.mean_linear}
DIVISIBLE = {choice for choice, promises in PROMISES.items() if promises.divisible}
RANDOM = {
    *"dion qsgd_by_kind qsgd powersgd ecqsgd random_k random_block orq linear qsgd_levels".split(),
    *"terngrad bingrad_pb maxnorm maxnorm_multiscale global_randk global_randk_multiscale".split(),
    *"unbiased_lowrank atomo natural acpsgd eden".split(),
}
NEVER_ZERO = {"signum"}  # a zero also gets one of the two signs
# The narrowest float type that is sent; for all other choices it is float32.
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def bare(choice: str) -> Compressor:
    """Return the choice with all tensors compressed, small buckets and no error feedback."""
    return compressor_of(choice, "all tensors" if "all tensors" in variants(choice) else "as it is")


def test_every_variant_is_one_that_some_choice_has() -> None:
    """Otherwise, a variant whose keys were renamed would silently no longer be tested."""
    assert {variant for _, variant in ALL} == set(VARIANTS)


# Shapes and values


@few_variants
def test_update_looks_like_the_gradients(choice: str, variant: str) -> None:
    check_shapes(compressor_of(choice, variant))


@few_variants
def test_state_is_never_changed_in_place(choice: str, variant: str) -> None:
    check_state_is_pure(compressor_of(choice, variant))


@few_variants
def test_state_survives_being_taken_apart(choice: str, variant: str) -> None:
    check_state_restores(compressor_of(choice, variant))


@few_variants
def test_same_arguments_give_the_same_bits(choice: str, variant: str) -> None:
    check_same_bits(lambda: compressor_of(choice, variant))


@each_choice
def test_the_default_dtype_of_the_user_means_nothing(choice: str) -> None:
    steps = [gradients(range(WORKERS), number) for number in range(2)]

    def take() -> list[Tensor]:
        method, state, seen = bare(choice), State(), []
        for number, grads in enumerate(steps):
            out = aggregate(method, grads, number=number, state=state)
            state = out.state
            seen += [*out.update.values(), *out.sent().values()]
            seen += [
                x
                for s in state.layers()
                for part in (s.shared, s.per_worker)
                for x in part.values()
            ]
        return seen

    expected = take()
    torch.set_default_dtype(torch.bfloat16)
    try:
        seen = take()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(seen, expected, strict=True)
    )


@each_choice
def test_another_seed_gives_other_bits_where_there_is_chance(choice: str) -> None:
    grads = gradients(range(4), 0)
    first = flat(aggregate(bare(choice), grads, seed=5).update)
    second = flat(aggregate(bare(choice), grads, seed=6).update)
    assert torch.equal(first, second) == (choice not in RANDOM)


@loop_over(
    [
        (*key, kind)
        for key in CODES
        for kind in ODD_INPUTS
        if key in FEW and (kind in HARDEST or key[1] in ("all tensors", "as it is"))
    ],
    [(*key, kind) for key in CODES for kind in ODD_INPUTS],
)
def test_odd_gradients_give_finite_updates_of_the_right_shape(
    choice: str, variant: str, kind: str
) -> None:
    check_odd_input(compressor_of(choice, variant), kind, zero_of_zeros=choice not in NEVER_ZERO)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_largest_value_that_fits_what_travels(choice: str) -> None:
    """It is float32's, except for those in HALF; otherwise the check above would be too weak."""
    assert largest_sent(bare(choice)) == torch.finfo(HALF.get(choice, torch.float32)).max


@loop_over([(choice, n) for choice in CHOICES for n in LENGTHS])
def test_a_single_tensor_of_any_length(choice: str, n: int) -> None:
    check_length(bare(choice), n)


# Promises


@pytest.mark.parametrize("choice", sorted(EXACT))
def test_exact_means_the_mean_of_the_gradients(choice: str) -> None:
    check_exact(bare(choice))


def test_sums_round_as_the_type_that_travels() -> None:
    """The checks of "exact" and "mean-linear" allow no larger error than this."""
    halves = {choice: torch.finfo(dtype).eps for choice, dtype in HALF.items()}
    roundings = {
        choice: rounding_of_sums(bare(choice)) for choice in (EXACT | MEAN_LINEAR) - {"exponents"}
    }
    assert roundings == dict.fromkeys(roundings, torch.finfo(torch.float32).eps) | halves


UNBIASED_VARIANTS = {
    "all tensors",
    "l2",
    "other levels",
    "other level count",
    "per layer",
    "many scales",
}
UNBIASED_CASES = [
    *(
        key
        for key in ALL
        if key[0] in UNBIASED
        and key[1] in UNBIASED_VARIANTS
        and key != ("orq", "other level count")
    ),
    ("qsgd", "small tensors whole"),  # one wrapper sets them aside for all methods
    ("atomo", "drawn once"),
]
# One case per code: the others only differ in a number or a norm.
UNBIASED_FEW = [key for key in UNBIASED_CASES if key[1] in ("all tensors", "many scales")]


@loop_over(UNBIASED_FEW, UNBIASED_CASES)
def test_unbiased_means_that_errors_cancel(choice: str, variant: str) -> None:
    compressor = compressor_of(choice, variant)
    assert compressor.properties.unbiased
    check_unbiased(compressor, repeats=300)


@loop_over([(choice, kind) for choice in sorted(CONTRACTIVE) for kind in VECTORS])
def test_contractive_means_that_the_error_is_smaller_than_the_gradient(
    choice: str, kind: str
) -> None:
    """PowerSGD's factors may miss a gradient entirely, but never add to it."""
    check_contractive(
        without_error_feedback(choice), kind, slack=1e-6 if choice == "powersgd" else 0
    )


def test_contractive_may_be_of_the_largest_magnitude() -> None:
    method = build(ScaledSign(bucket_size=16, scale="rms"))
    assert method.properties.contractive
    for kind in VECTORS:
        check_contractive(method, kind, slack=0)


LONG = {"sparseloco", "orq", "bingrad_b", "sign_norm"}  # codes as others here, and takes seconds
ADDS_UP = [choice for choice in CHOICES if PROMISES[choice].contractive or choice in UNBIASED]


@pytest.mark.parametrize("choice", slow_but([c for c in ADDS_UP if c not in LONG], ADDS_UP))
def test_updates_and_residuals_add_up_to_the_gradients(choice: str) -> None:
    """They do for one value, one row, rank 1, 1e30 and 1e-30, below, at and above the rank."""
    assert check_conserves(bare(choice)) is None


KEEPS_AN_AVERAGE = ("loco", "sparseloco")  # of errors, in place of all that was not sent
SUMMING = [key for key in ALL if key[1] in ("error feedback", "aggregated residual", "cold start")]


@loop_over([("powersgd", "error feedback")], SUMMING)
def test_a_methods_own_error_feedback_adds_up(choice: str, variant: str) -> None:
    nothing = check_conserves(compressor_of(choice, variant))
    adds_up = PROMISES[choice].contractive and choice not in KEEPS_AN_AVERAGE
    assert (nothing is None) == adds_up or choice in UNBIASED


SENDS_ITS_PAST = {"error feedback", "ef21", "loco", "ecq", "clipped norm"}


@loop_over(
    [key for key in FEW if key[1] in SENDS_ITS_PAST],
    [key for key in ALL if key[1] in SENDS_ITS_PAST],
)
def test_error_feedback_and_clipping_promise_nothing_of_the_gradient(
    choice: str, variant: str
) -> None:
    """With error feedback or clipping, what is sent is not a code of the gradient itself."""
    promises = compressor_of(choice, variant).properties
    assert not (promises.contractive or promises.unbiased or promises.exact)


LINEAR = [key for key in ALL if key[0] in MEAN_LINEAR and key[1] != "clipped norm"]


@loop_over([key for key in FEW if key in LINEAR], LINEAR)
def test_mean_linear_means_that_rows_count_by_their_mean(choice: str, variant: str) -> None:
    check_mean_linear(compressor_of(choice, variant))


@few_variants
def test_mean_linear_is_promised_by_the_right_choices(choice: str, variant: str) -> None:
    """Clipping each worker's gradient is not linear."""
    promised = compressor_of(choice, variant).properties.mean_linear
    assert promised == ((choice, variant) in LINEAR)


@few_variants
def test_only_signs_and_orthonormal_matrices_have_no_scale(choice: str, variant: str) -> None:
    compressor = compressor_of(choice, variant)
    assert is_direction(compressor) == (choice in ("signum", "demo", "dion", "dion2"))
    check_direction(compressor)


NEED_THE_WHOLE = {"clipped norm", "aligned", "adaptive"} | {
    *("hierarchical", "hierarchical, with residuals"),
}


@few_variants
def test_shapes_mean_nothing_to_the_choices_that_promise_it(choice: str, variant: str) -> None:
    compressor = compressor_of(choice, variant)
    assert compressor.properties.divisible == (
        choice in DIVISIBLE and variant not in NEED_THE_WHOLE
    )
    if compressor.properties.divisible:
        check_divisible(compressor)


@few_variants
def test_scope_says_whether_tensors_depend_on_each_other(choice: str, variant: str) -> None:
    check_scope(compressor_of(choice, variant))
