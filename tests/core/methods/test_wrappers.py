"""Wrappers around a method, and their order."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from method_cases import CHOICES, aggregate, build_method, flat, gradients
from nightly import each, loop_over
from torch import Tensor

import gcbench.core.exchange
import gcbench.core.methods
import gcbench.core.wrappers
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Compressor, Grads, State, flatten
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.methods.by_kind import ByKind
from gcbench.core.methods.dense import Cast, Dense
from gcbench.core.methods.ef21 import EF21, WorkerMomentum
from gcbench.core.methods.loco import LoCo
from gcbench.core.methods.matrices import SmallTensorsWhole, StacksOfMatrices
from gcbench.core.methods.maxnorm import MaxNorm
from gcbench.core.methods.onebit_adam import MomentumCoding
from gcbench.core.methods.orq import BinGradB
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.random_sparse import RandomBlock, RandomK
from gcbench.core.wrappers.adaptive import AdaptiveRank
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.wrappers import (
    BucketsThroughGradient,
    CheckedGradients,
    DenseWarmup,
    ErrorFeedback,
    NormClipping,
    Rotated,
    SigmaClipping,
)

METHODS: dict[str, Compressor] = {
    "qsgd": build(QSGD(7, bucket_size=16)),
    "powersgd, own": PowerSGD(2, residual="own"),
    "powersgd, aggregated": PowerSGD(2, residual="aggregated"),
    "fp16": Dense("float16"),
    "maxnorm": MaxNorm(7),
    "random_k": RandomK(2),
    "random_block": RandomBlock(2),
}
WEIGHTS = [(1.0, 1.0), (0.2, 0.9), (0.5, 1.0), (1.0, 0.0), (0.0, 1.0), (2.0, 0.5)]
each_method = pytest.mark.parametrize("method", METHODS)
each_weight = pytest.mark.parametrize(("alpha", "beta"), WEIGHTS)


def matrices(number: int = 0, rows: int = 4) -> Grads:
    return {k: g for k, g in gradients(range(rows), number).items() if g.dim() > 1}


def equal(a: Grads, b: Grads) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


# Error feedback


@each_weight
@each_method
def test_what_was_sent_and_what_is_remembered_add_up(
    method: str, alpha: float, beta: float
) -> None:
    """sent + residual' = grad + beta residual."""
    compressor, state = ErrorFeedback(METHODS[method], alpha, beta), State()
    for number in range(4):
        grads = matrices(number)
        out = aggregate(compressor, grads, number=number, state=state)
        sent = out.sent()
        for name, g in grads.items():
            before = (
                state.per_worker[name].double()
                if state.per_worker
                else torch.zeros_like(g, dtype=torch.float64)
            )
            left = sent[name].double() + out.state.per_worker[name].double()
            scale = max(float(x.abs().max()) for x in (g, before, sent[name]))
            torch.testing.assert_close(left, g.double() + beta * before, rtol=0, atol=3e-7 * scale)
        state = out.state


@each_weight
@each_method
def test_the_method_codes_the_gradient_and_the_weighted_residual(
    method: str, alpha: float, beta: float
) -> None:
    """The method codes u = g + alpha h."""
    compressor = ErrorFeedback(METHODS[method], alpha, beta)
    state = aggregate(compressor, matrices(0)).state
    out = aggregate(compressor, matrices(1), number=1, state=state)
    corrected = {k: torch.add(g, state.per_worker[k], alpha=alpha) for k, g in matrices(1).items()}
    alone = aggregate(METHODS[method], corrected, number=1, state=state.inner)
    assert equal(out.update, alone.update)


@each_method
def test_weight_zero_leaves_the_method_as_it_is(method: str) -> None:
    """ECQ-SGD with alpha = 0 is QSGD to the bit, over several steps."""
    compressor, wrapped, bare = (
        ErrorFeedback(METHODS[method], alpha=0.0, beta=0.9),
        State(),
        State(),
    )
    for number in range(4):
        with_feedback = aggregate(compressor, matrices(number), number=number, state=wrapped)
        without = aggregate(METHODS[method], matrices(number), number=number, state=bare)
        wrapped, bare = with_feedback.state, without.state
        assert equal(with_feedback.update, without.update)


def test_ecqsgd_without_compensation_is_qsgd() -> None:
    """They are equal to the bit, whatever the residual's beta."""
    shared = {"levels": 4, "bucket_size": 16, "norm": "l2", "min_size": 0}
    ecq, plain, state = (
        build_method("ecqsgd", alpha=0, **shared),
        build_method("qsgd", **shared),
        State(),
    )
    for number in range(4):
        grads = gradients(range(4), number)
        out = aggregate(ecq, grads, number=number, state=state)
        state = out.state
        assert equal(out.update, aggregate(plain, grads, number=number).update)


def test_all_that_was_held_back_is_sent_in_the_end() -> None:
    """The sum of updates follows the sum of gradients, as the residual stays bounded."""
    compressor, state = build(PowerSGD(1), error_feedback=True), State()
    applied = wanted = torch.zeros(1, dtype=torch.float64)
    fixed = matrices()
    for number in range(100):
        out = aggregate(compressor, fixed, number=number, state=state)
        state, applied, wanted = out.state, applied + flat(out.update), wanted + flat(fixed).mean(0)
    assert (applied - wanted).norm() < 0.1 * wanted.norm()
    bare = flat(aggregate(PowerSGD(1), fixed).update) * 100
    assert (bare - wanted).norm() > 0.3 * wanted.norm(), "without error feedback most is lost"


def test_every_worker_has_its_own_residual() -> None:
    state = aggregate(build(QSGD(7, bucket_size=16), error_feedback=True), matrices()).state
    assert {k: m.shape for k, m in state.per_worker.items()} == {
        k: g.shape for k, g in matrices().items()
    }
    assert not torch.equal(flat(state.per_worker)[0], flat(state.per_worker)[1])


# Norm clipping


class Spy:
    """A dense compressor that records the gradients it is given."""

    properties = Dense.properties

    def __init__(self) -> None:
        self.seen: Grads = {}

    def aggregate(self, grads: Grads, state: State, comm: Any, step: Any) -> Any:
        self.seen = grads
        return Dense().aggregate(grads, state, comm, step)


def test_each_worker_is_clipped_as_torch_does() -> None:
    grads, spy = gradients(range(4), 0), Spy()
    for g in grads.values():
        g[1] *= 100
        g[2] *= 1e-3
    aggregate(NormClipping(spy, 0.4), grads)
    for k in range(4):
        parameters = [torch.nn.Parameter(torch.zeros_like(g[k])) for g in grads.values()]
        for p, g in zip(parameters, grads.values(), strict=True):
            p.grad = g[k].clone()
        torch.nn.utils.clip_grad_norm_(parameters, 0.4)
        for p, name in zip(parameters, grads, strict=True):
            torch.testing.assert_close(spy.seen[name][k], p.grad)
    norms = flat(spy.seen).norm(dim=1)
    assert norms[1].item() == pytest.approx(0.4, rel=1e-4)
    assert torch.equal(spy.seen["matrix"][2], grads["matrix"][2]), "a small gradient is left alone"


@each("rows", [1, 2])
def test_clipping_of_a_worker_does_not_depend_on_who_shares_its_process(rows: int) -> None:
    """The result is equal to the bit, even for tensors that several threads reduce."""
    sizes = [300_000, 100_000, 50_000, 33_000, *range(1, 40)]
    grads = {
        f"w{i}": torch.randn(4, n, generator=torch.Generator().manual_seed(i))
        for i, n in enumerate(sizes)
    }
    together, apart = Spy(), Spy()
    aggregate(NormClipping(together, 0.4), grads)
    for start in range(0, 4, rows):
        aggregate(NormClipping(apart, 0.4), {k: g[start : start + rows] for k, g in grads.items()})
        for name in grads:
            assert torch.equal(apart.seen[name], together.seen[name][start : start + rows])


# Small tensors


def test_small_tensors_travel_whole() -> None:
    grads, comm = gradients(range(4), 0), Comm(4)
    out = aggregate(build(QSGD(1, bucket_size=16), min_size=130), grads, comm=comm)
    exact = {k: g.double().mean(0) for k, g in grads.items()}
    for name, g in grads.items():
        error = (out.update[name][0].double() - exact[name]).abs().max()
        assert (error < 1e-6) == (g[0].numel() < 130), name
    whole = sum(g[0].numel() for g in grads.values() if g[0].numel() < 130)
    coded = 162 + 130 + 130  # a tensor of exactly `min_size` values is coded
    assert comm.meter.sent_bits[0] == 32 * whole + 2 * 8 * -(-coded // 8) + 32 * (11 + 9 + 9)


def test_vectors_travel_whole_by_their_dimensions() -> None:
    grads, comm = gradients(range(4), 0), Comm(4)
    out = aggregate(build(PowerSGD(1), min_dims=2), grads, comm=comm)
    for name in ("conv bias", "scalar", "one"):
        torch.testing.assert_close(out.update[name][0], grads[name].mean(0))
    assert set(out.state.shared) == {"conv", "matrix", "twin", "row"}
    assert comm.meter.sent_bits[0] == 32 * ((6 + 1 + 1) + (6 + 27) + 2 * (10 + 13) + (1 + 37))


def test_nothing_is_remembered_of_tensors_that_travel_whole() -> None:
    state = aggregate(
        build(PowerSGD(1), min_dims=2, min_size=130, error_feedback=True), gradients(range(4), 0)
    ).state
    assert set(state.per_worker) == {"conv", "matrix", "twin"}


def test_a_model_of_small_tensors_only_needs_no_codes() -> None:
    grads = gradients(range(4), 0)
    out = aggregate(
        build(QSGD(1, bucket_size=16), min_size=10_000, error_feedback=True, alpha=0.2, beta=0.9),
        grads,
    )
    torch.testing.assert_close(flat(out.update)[0], flat(grads).mean(0), rtol=0, atol=1e-6)
    assert equal(out.sent(), grads)


# Dense warm-up


def test_gradients_travel_whole_until_the_step_that_was_named() -> None:
    compressor, state, comm = (
        build(QSGD(1, bucket_size=16), dense_steps=2, error_feedback=True, alpha=0.2, beta=0.9),
        State(),
        Comm(4),
    )
    bits = []
    for number in range(4):
        before = comm.meter.sent_bits[0]
        out = aggregate(compressor, matrices(number), number=number, state=state, comm=comm)
        state = out.state
        bits.append(comm.meter.sent_bits[0] - before)
        mean = flat(matrices(number)).mean(0)
        assert ((flat(out.update)[0] - mean).abs().max() < 1e-6) == (number < 2)
    n = flat(matrices()).shape[1]
    assert bits[:2] == [32 * n] * 2
    assert bits[2] == bits[3] < 6 * n


def test_the_method_starts_fresh_after_the_dense_steps() -> None:
    late = aggregate(build(PowerSGD(2), dense_steps=3), matrices(3), number=3)
    assert equal(late.update, aggregate(PowerSGD(2), matrices(3), number=3).update)


# Sigma clipping


def test_values_are_clipped_at_so_many_deviations_of_their_own_tensor() -> None:
    grads, spy = gradients(range(4), 0), Spy()
    grads["matrix"][2] *= 50
    grads["conv"][:, 0, 0] *= 20
    aggregate(SigmaClipping(spy, 1.5), grads)
    for name in ("conv", "matrix", "twin", "row"):
        for k in range(4):
            g = grads[name][k].double()
            limit = 1.5 * g.std(correction=0)
            torch.testing.assert_close(
                spy.seen[name][k].double(), g.clamp(-limit, limit), rtol=1e-5, atol=1e-9
            )
            assert spy.seen[name][k].abs().max() < g.abs().max(), "something was clipped"


def test_a_wide_limit_clips_nothing() -> None:
    grads, spy = {k: g for k, g in matrices().items() if k != "one"}, Spy()
    aggregate(SigmaClipping(spy, 100.0), grads)
    assert equal(spy.seen, grads)


@each("shape", [(), (1,), (5,)])
def test_a_tensor_without_spread_keeps_its_gradient(shape: tuple[int, ...]) -> None:
    grads, spy = {"w": torch.full((2, *shape), 0.3)}, Spy()
    aggregate(SigmaClipping(spy, 2.5), grads)
    assert spy.seen["w"].abs().min() > 0.1


def test_values_far_from_zero_are_clipped_at_the_deviation_from_their_mean() -> None:
    """Wen et al., section 4: "sigma is the standard deviation of gradients".

    The root mean square of these values is three times as large.
    """
    grads, spy = {"w": torch.randn(1, 4000, generator=torch.Generator().manual_seed(0)) + 3}, Spy()
    aggregate(SigmaClipping(spy, 2.5), grads)
    assert spy.seen["w"].max().item() == pytest.approx(2.5, rel=0.05)


@each("size", [1e-40, 1e-30, 1e-24, 1.0, 1e18, 1e30, 1e38])
def test_values_of_any_size_are_clipped_alike(size: float) -> None:
    v = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    values, norms = Spy(), Spy()
    aggregate(SigmaClipping(values, 1.5), {"w": (v.double() * size).float()})
    aggregate(NormClipping(norms, 1.5 * size), {"w": (v.double() * size).float()})
    for seen, expected in (
        (values, v.clamp(-1.5 * v.std(), 1.5 * v.std())),
        (norms, v * 1.5 / v.norm()),
    ):
        torch.testing.assert_close(
            seen.seen["w"].double() / size, expected.double(), rtol=2e-3, atol=1e-5
        )


def test_the_residual_keeps_what_was_clipped() -> None:
    """Clipping is inside error feedback, so that nothing is lost for good."""
    grads = matrices()
    grads["matrix"][0, 0, 0] = 50
    out = aggregate(build(QSGD(7, bucket_size=16), clip_sigma=2.5, error_feedback=True), grads)
    assert out.state.per_worker["matrix"][0, 0, 0] > 20


# The order


def error_of(out: Aggregated, grads: Grads) -> float:
    """Return the relative error of what all got for the mean of what was to be coded."""
    wanted, got = out.goal_of(grads)()
    mean = flatten(wanted).double().mean(0)
    return float((flatten({k: got[k] for k in wanted})[0] - mean).norm() / mean.norm())


def wrapper_classes() -> set[type]:
    """Return all classes of methods, exchanges and wrappers that have a compressor inside."""
    modules = [
        importlib.import_module(f"{room.__name__}.{module.name}")
        for room in (gcbench.core.methods, gcbench.core.exchange, gcbench.core.wrappers)
        for module in pkgutil.iter_modules(room.__path__)
    ]
    return {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and is_dataclass(kind)
        and "inner" in {field.name for field in fields(kind)}
        and hasattr(kind, "aggregate")
    }


EVERY_WRAPPER: dict[type, dict[str, Any]] = {
    NormClipping: {"clip_norm": 0.1},
    DenseWarmup: {"dense_steps": 2},
    SmallTensorsWhole: {"min_size": 50},
    WorkerMomentum: {"momentum": 0.9, "error_feedback": "ef21"},
    MomentumCoding: {"momentum": 0.9},
    ErrorFeedback: {"error_feedback": True},
    EF21: {"error_feedback": "ef21"},
    LoCo: {"error_feedback": "loco"},
    SigmaClipping: {"clip_sigma": 1.0},
    BucketsThroughGradient: {"bucket_scope": "gradient"},
}


def test_what_is_coded_without_loss_has_no_error_in_any_wrapper() -> None:
    """Alone, and all of them at once: the goal is what each of them asks the next one to code."""
    together = {k: v for knobs in EVERY_WRAPPER.values() for k, v in knobs.items()}
    # A residual keeps what sigma clipping takes away.
    others = {k: v for k, v in together.items() if k != "error_feedback"}
    feedback = {k: v for k, v in together.items() if k != "clip_sigma"} | {"error_feedback": True}
    for kind, knobs in [*EVERY_WRAPPER.items(), (SigmaClipping, others), (ErrorFeedback, feedback)]:
        compressor = build(Dense(), **knobs)
        assert kind in layers(compressor)
        state = State()
        for number in range(4):
            grads = gradients(range(4), number)
            out = aggregate(compressor, grads, number=number, state=state)
            state = out.state
            assert error_of(out, grads) < 1e-6, knobs
    drawn = torch.Generator().manual_seed(0)
    stacks = {
        "w": torch.randn(3, 4, 5, 6, generator=drawn),
        "b": torch.randn(3, 9, generator=drawn),
    }
    for knobs in ({}, {"clip_sigma": 1.0, "min_dims": 2}):
        exact = build(PowerSGD(rank=5), **knobs)  # of all ranks that the four matrices can have
        assert StacksOfMatrices in layers(exact)
        assert error_of(aggregate(exact, stacks), stacks) < 1e-5
    # test_rotated.py has rotations, which are around codecs only, and test_adaptive.py ranks.
    others = {CheckedGradients, StacksOfMatrices, Rotated, AdaptiveRank}
    assert others | EVERY_WRAPPER.keys() == wrapper_classes()


def test_an_exchange_between_nodes_and_methods_by_kind_have_no_error_of_their_own() -> None:
    grads = gradients(range(4), 0)
    nodes = build(Cast("float32"), exchange="hierarchical", workers_per_node=2)
    kinds = ByKind(build(Dense(), clip_sigma=1.0), build(Dense(), clip_sigma=2.0))
    for compressor in (nodes, kinds):
        assert error_of(aggregate(compressor, grads), grads) < 1e-6


def test_what_a_residual_keeps_of_a_clipped_value_is_an_error() -> None:
    grads = gradients(range(4), 0)
    out = aggregate(build(Dense(), clip_sigma=1.0, error_feedback=True), grads)
    clipped = aggregate(build(Dense(), clip_sigma=1.0), grads)
    mean = flatten(grads).double().mean(0)
    lost = float((flatten(clipped.update)[0] - mean).norm() / mean.norm())
    assert error_of(out, grads) == pytest.approx(lost) and lost > 0.1


def test_the_error_of_coded_momenta_is_that_of_the_momentum() -> None:
    """In the unit of the gradient it would be 1 / (1 - beta) times as large."""
    compressor = build(QSGD(7), momentum=0.9)
    first, second = (gradients(range(4), number) for number in range(2))
    momentum = aggregate(compressor, first).state
    out = aggregate(compressor, second, number=1, state=momentum)
    wanted, got = out.goal_of(second)()
    for k, g in second.items():
        torch.testing.assert_close(wanted[k], 0.9 * momentum.shared[k] + 0.1 * g)
    assert equal(got, out.state.shared) and not equal(got, out.update)


def layers(compressor: Compressor) -> list[type]:
    types = [type(compressor)]
    while hasattr(compressor, "inner"):
        compressor = compressor.inner
        types.append(type(compressor))
    return types


EVERYTHING = {
    "clip_norm": 0.4,
    "dense_steps": 3,
    "min_size": 10,
    "error_feedback": True,
    "alpha": 0.2,
    "beta": 0.9,
    "clip_sigma": 2.5,
}


ORDER = [
    CheckedGradients,
    NormClipping,
    DenseWarmup,
    SmallTensorsWhole,
    ErrorFeedback,
    SigmaClipping,
    GatherExchange,
]


def test_wrappers_have_one_order() -> None:
    compressor = build(QSGD(7, bucket_size=16), **EVERYTHING)  # type: ignore[arg-type]
    assert layers(compressor) == ORDER


def test_nothing_is_wrapped_that_was_not_asked_for() -> None:
    assert layers(build(PowerSGD(1))) == [CheckedGradients, StacksOfMatrices, PowerSGD]
    assert layers(build(QSGD(7, bucket_size=16))) == [CheckedGradients, GatherExchange]
    small = [CheckedGradients, SmallTensorsWhole, StacksOfMatrices, PowerSGD]
    assert layers(build(PowerSGD(1), min_dims=2)) == small
    assert layers(build(PowerSGD(1), min_ratio=1)) == small


def test_the_command_line_reaches_every_wrapper() -> None:
    compressor: Any = build_method("qsgd", **EVERYTHING)
    assert layers(compressor) == ORDER
    clipping = compressor.inner
    warmup = clipping.inner
    small = warmup.inner
    feedback = small.inner
    assert (clipping.clip_norm, warmup.dense_steps, small.min_size) == (0.4, 3, 10)
    assert (feedback.alpha, feedback.beta, feedback.inner.clip_sigma) == (0.2, 0.9, 2.5)


def test_everything_at_once_works() -> None:
    compressor = build(QSGD(7, bucket_size=16), **EVERYTHING)  # type: ignore[arg-type]
    state = State()
    for number in range(6):
        out = aggregate(compressor, gradients(range(4), number), number=number, state=state)
        state = out.state
        assert all(u.isfinite().all() for u in out.update.values())
        assert flat(out.update).norm() < 0.9


# Checks of the gradients


def test_other_types_than_float32_are_refused_by_name() -> None:
    for choice in CHOICES:
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            says = f"the gradient of matrix is {dtype}; aggregate takes torch.float32"
            with pytest.raises(TypeError, match=says):
                aggregate(build_method(choice), {"matrix": torch.randn(2, 8, 8, dtype=dtype)})


@loop_over(
    [(choice, (0, 5)) for choice in CHOICES] + [("none", (0,)), ("powersgd", (3, 0))],
    [(choice, shape) for choice in CHOICES for shape in ((0,), (0, 5), (3, 0))],
)
def test_parameters_without_values_pass_by(choice: str, shape: tuple[int, ...]) -> None:
    method, grads = (
        build_method(choice),
        {**gradients(range(2), 0), "empty": torch.zeros(2, *shape)},
    )
    comm, without = Comm(2), Comm(2)
    out = aggregate(method, grads, comm=comm)
    assert list(out.update) == list(out.sent()) == list(grads)
    assert out.update["empty"].shape == (1, *shape) and "empty" not in out.state.per_worker
    empty = {"empty": grads.pop("empty")}
    assert torch.equal(flat(aggregate(method, grads, comm=without).update), flat(out.update))
    assert comm.meter.sent_bits == without.meter.sent_bits
    assert aggregate(method, empty).update["empty"].shape == (1, *shape)


# Buckets through the gradient


def test_buckets_run_through_the_gradient() -> None:
    """The codes are those of one long tensor: no bucket restarts at a tensor."""
    grads = gradients(range(2), 0)
    through = flat(aggregate(build(QSGD(7, bucket_size=64), bucket_scope="gradient"), grads).update)
    whole = {
        "w": torch.cat(
            [g.flatten(1) if g.dim() > 1 else g.unsqueeze(1) for g in grads.values()], dim=1
        )
    }
    assert torch.equal(through, flat(aggregate(build(QSGD(7, bucket_size=64)), whole).update))
    assert not torch.equal(through, flat(aggregate(build(QSGD(7, bucket_size=64)), grads).update))


@each(
    ("setting", "typed"),
    [
        ({"exchange": "sum"}, "exchange=sum"),
        ({"code": "ans"}, "code=ans"),
        ({"align": True}, "align=true"),
    ],
)
def test_a_method_without_codes_refuses_what_codes_have(
    setting: dict[str, Any], typed: str
) -> None:
    with pytest.raises(ValueError, match=f"{typed}: PowerSGD has no codes"):
        build(PowerSGD(2), **setting)


def test_buckets_through_the_gradient_cost_one_scale_each() -> None:
    grads, comm = gradients(range(2), 0), Comm(2)
    n = flat(grads).shape[1]
    aggregate(build(QSGD(127, bucket_size=64), bucket_scope="gradient"), grads, comm=comm)
    assert comm.meter.sent_bits[0] == 8 * n + 32 * -(-n // 64)


def test_buckets_through_the_gradient_hold_neither_layers_nor_receptive_fields() -> None:
    with pytest.raises(ValueError, match="type only one of them"):
        build(QSGD(7, bucket_size=16), bucket_scope="gradient", align=True)
    with pytest.raises(ValueError, match="per_layer=true bucket_scope=gradient"):
        build(BinGradB(per_layer=True), bucket_scope="gradient")
    with pytest.raises(ValueError, match="per_layer=true align=true"):
        build(BinGradB(per_layer=True), align=True)


# The warning


def warned(method: Any, **settings: Any) -> bool:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        build(method, **settings)
    return any("alpha=0.2 beta=0.9" in str(w.message) for w in seen)


EXPANDING = {
    "linf, large buckets": QSGD(7, bucket_size=512),
    "l2": QSGD(7, "l2", bucket_size=512),
    "one level": QSGD(1, bucket_size=16),
}
SAFE: dict[str, Any] = {
    "small buckets": QSGD(7, bucket_size=128),
    "many levels": QSGD(127, bucket_size=512),
    "powersgd": PowerSGD(1),
    "dense": Dense("float16"),
}


@each("method", EXPANDING)
def test_plain_error_feedback_around_an_expanding_quantizer_is_warned_of(method: str) -> None:
    assert warned(EXPANDING[method], error_feedback=True)
    assert warned(EXPANDING[method], error_feedback=True, clip_sigma=2.5)
    assert not warned(EXPANDING[method])


@each("method", EXPANDING)
def test_ecq_is_not_warned_of(method: str) -> None:
    assert not warned(EXPANDING[method], error_feedback=True, alpha=0.2, beta=0.9)


@each("method", SAFE)
def test_plain_error_feedback_around_a_contraction_is_not_warned_of(method: str) -> None:
    assert not warned(SAFE[method], error_feedback=True)


@each(("alpha", "diverges"), [(1.0, True), (0.1, False)])
def test_the_warning_is_about_something(alpha: float, diverges: bool) -> None:
    """With l2, s = 4 and d = 1024, gamma is 8, and the residual grows without bound at alpha = 1.

    ECQ-SGD's small weight keeps it bounded.
    """
    compressor = ErrorFeedback(build(QSGD(4, "l2", bucket_size=1024)), alpha, 1.0)
    state, sizes = State(), []
    for number in range(60):
        g: Tensor = torch.randn(1, 4096, generator=torch.Generator().manual_seed(number))
        state = aggregate(compressor, {"w": g}, number=number, state=state).state
        sizes.append(float(state.per_worker["w"].norm() / 64))
    assert (sizes[-1] > 1e3) == diverges
    assert diverges or sizes[-1] < 20
