"""The checks that hold for every method, whatever it promises."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gcbench.core.codec import Codec
from gcbench.core.compressor import Aggregated, Compressor, State
from gcbench.core.wrappers.virtual import aggregate, parts_of
from gcbench.runner.check.steps import (
    SHAPES,
    STEPS,
    flat,
    gradients,
    observe,
    shapes_of,
    trace,
)


def demand(holds: object, sentence: str) -> None:
    """Raise AssertionError with `sentence` unless `holds`.

    This is not an `assert` statement, as users' methods are checked under `python -O`, too.
    """
    if not holds:
        raise AssertionError(sentence)


def check_parts(compressor: Compressor) -> None:
    """Check that a method has the attributes of a compressor, or those of a codec."""
    method = list(parts_of(compressor))[-1]
    verbs = (
        ["aggregate"]
        if hasattr(method, "aggregate")
        else ["encode", "encode_each", "decode_add", "decode_mean"]
    )
    # A codec without its own inherits these, which return nothing.
    stubs = {name: getattr(Codec, name) for name in ("properties", "encode", "decode_add")}
    missing = [
        name
        for name in ("properties", *verbs)
        if not hasattr(method, name) or getattr(type(method), name, None) is stubs.get(name, method)
    ]
    demand(
        not missing,
        f"{type(method).__name__} has no {' and no '.join(missing)}: a compressor has properties "
        "and aggregate(grads, state, comm, step), a codec (a subclass of "
        "gcbench.core.codec.Codec) has properties, encode and decode_add",
    )


def check_shapes(compressor: Compressor) -> None:
    """Check names, shapes and types of updates and messages, and that gradients are left alone."""
    state, grads = State(), gradients(range(4), 0)
    before = {k: g.clone() for k, g in grads.items()}
    for number in range(2):
        out = aggregate(compressor, grads, number=number, state=state)
        state, sent = out.state, out.sent()
        for what, tensors in (("update", out.update), ("sent()", sent)):
            demand(
                list(tensors) == list(grads),
                f"{what} has the tensors {list(tensors)}, not {list(grads)} in this order",
            )
        for name, g in grads.items():
            agreed, got = (1, *SHAPES[name]), tuple(out.update[name].shape)
            demand(
                got == agreed,
                f"the update of {name} has the shape {got}, not {agreed}: all workers agree on one "
                "row",
            )
            demand(
                out.update[name].dtype == torch.float32,
                f"the update of {name} is {out.update[name].dtype}, not float32",
            )
            got = tuple(sent[name].shape)
            demand(
                got in (tuple(g.shape), agreed),
                f"sent() of {name} has the shape {got}, not {tuple(g.shape)} or {agreed}",
            )
            demand(
                torch.equal(g, before[name]),
                f"the gradient {name} was changed in place; it is the caller's",
            )


def check_state_is_pure(compressor: Compressor) -> None:
    """Check that an old state gives the same step a second time."""
    state = aggregate(compressor, gradients(range(4), 0)).state
    once = aggregate(compressor, gradients(range(4), 1), number=1, state=state)
    once.sent()
    again = aggregate(compressor, gradients(range(4), 1), number=1, state=state)
    demand_same(
        once, again, "a step from a state that was used before: states are never changed in place"
    )


def check_state_restores(compressor: Compressor) -> None:
    """Check that a state rebuilt from its tensors gives the same step."""
    state = State()
    for number in range(2):
        state = aggregate(compressor, gradients(range(4), number), number=number, state=state).state
    layers = [
        (
            {k: x.clone() for k, x in layer.shared.items()},
            {k: x.clone() for k, x in layer.per_worker.items()},
        )
        for layer in state.layers()
    ]
    grads = gradients(range(4), 2)
    went_on = aggregate(compressor, grads, number=2, state=state)
    restored = aggregate(compressor, grads, number=2, state=State.of_layers(layers))
    demand_same(
        went_on,
        restored,
        "a step after a checkpoint: what a method remembers is in its state, and only there",
    )


def check_same_bits(make: Callable[[], Compressor]) -> None:
    """Check that a new compressor gives the same step, whatever else draws random numbers."""
    grads = gradients(range(4), 0)
    first = aggregate(make(), grads, number=3, seed=5)
    torch.manual_seed(99)
    again = aggregate(make(), grads, number=3, seed=5)
    demand_same(
        first,
        again,
        "the same step with the same seed: chance comes from step.noise, and from nowhere else",
    )


def demand_same(a: Aggregated, b: Aggregated, what: str) -> None:
    for name in a.update:
        demand(
            torch.equal(a.update[name], b.update[name]), f"the update of {name} differs in {what}"
        )
    for one, other in zip(a.state.layers(), b.state.layers(), strict=True):
        for x, y in ((one.shared, other.shared), (one.per_worker, other.per_worker)):
            demand(list(x) == list(y), f"the state has other tensors in {what}")
            for name in x:
                demand(torch.equal(x[name], y[name]), f"the state of {name} differs in {what}")


ODD_SHAPES = {
    "one": (1,),
    "scalar": (),
    "prime": (31,),
    "17": (17,),
    "16": (4, 4),
    "column": (7, 1),
    "row": (1, 7),
    "cube": (3, 5, 7),
}
ODD_INPUTS: dict[str, Callable[[tuple[int, ...], float], Tensor]] = {
    "zeros": lambda shape, huge: torch.zeros(4, *shape),
    "denormals": lambda shape, huge: torch.randn(4, *shape) * 1e-41,
    "one huge value": lambda shape, huge: _with_one(torch.randn(4, *shape), huge),
    "one value": lambda shape, huge: _with_one(torch.zeros(4, *shape), 1.0),
    "tiny": lambda shape, huge: torch.randn(4, *shape) * 1e-30,
}


def _with_one(x: Tensor, value: float) -> Tensor:
    x.view(-1)[x.numel() // 2] = value
    return x


def check_odd_input(compressor: Compressor, kind: str, zero_of_zeros: bool) -> None:
    """Check steps on odd gradients: tensors of 1 value, of a prime number of values, and others.

    A huge value is one that fits the types that are sent.
    """
    huge = min(largest_sent(compressor), 1e30) if kind == "one huge value" else 0.0
    torch.manual_seed(0)
    grads = {k: ODD_INPUTS[kind](shape, huge) for k, shape in ODD_SHAPES.items()}
    state = State()
    for number in range(3):
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        demand(
            shapes_of(out.update) == ODD_SHAPES,
            f"gradients of {kind}: the update has shapes {shapes_of(out.update)}",
        )
        demand(
            all(u.isfinite().all() for u in out.update.values()),
            f"gradients of {kind}: the update is not finite",
        )
        if kind == "zeros" and zero_of_zeros:
            demand(not flat(out.update).any(), "gradients of zeros: the update is not zero")


def largest_sent(compressor: Compressor) -> float:
    """Return the largest value of the narrowest float type that is sent."""
    comm, seen = observe()
    trace(compressor, comm, STEPS)
    return min(
        (torch.finfo(t).max for _, t in seen if t.is_floating_point),
        default=torch.finfo(torch.float32).max,
    )


LENGTHS = (1, 7, 8, 9, 15, 16, 17, 512, 513)


def check_length(compressor: Compressor, n: int) -> None:
    """Check a step on a tensor of n values."""
    grads = {"w": torch.randn(2, n, generator=torch.Generator().manual_seed(n))}
    update = aggregate(compressor, grads).update["w"]
    demand(
        update.shape == (1, n),
        f"a tensor of {n} values: the update has the shape {tuple(update.shape)}",
    )
    demand(update.isfinite().all(), f"a tensor of {n} values: the update is not finite")
