"""Steps of optimizers in native code, which have the bits of PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from backends import use
from torch import Tensor, nn

from gcbench.core.codecs.kernels import use_backend
from gcbench.core.codecs.updates import are_native
from gcbench.runner.train.optimizers import SGD, Adam, AdamW, PowerSGDMomentum

SHAPES = ((3,), (7, 5), (), (64, 33), (40_001,), (0,))
CASES: list[tuple[Any, Any, dict[str, Any]]] = [
    (SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-2}),
    (SGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (SGD, torch.optim.SGD, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}),
    (SGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    (SGD, torch.optim.SGD, {"weight_decay": 1e-2}),
    (Adam, torch.optim.Adam, {}),
    (Adam, torch.optim.Adam, {"weight_decay": 0.1, "eps": 1e-3}),
    (AdamW, torch.optim.AdamW, {}),
    (AdamW, torch.optim.AdamW, {"weight_decay": 0.0, "betas": (0.5, 0.9)}),
    (AdamW, torch.optim.AdamW, {"amsgrad": True}),
]
PAIR = (SGD, torch.optim.SGD)
IDS = [f"{own.__name__} {knobs}" for own, _, knobs in CASES]


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in SHAPES]


def train(optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    """Take steps with random gradients, none for the second parameter before step 3."""
    (group,) = optimizer.param_groups
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for k, p in enumerate(group["params"]):
            d = torch.randn(p.shape, generator=generator) * 10.0 ** (step % 5 - 4)
            d.flatten()[:1] = (0.0, -0.0, torch.inf if step > 10 else 1e-30)[step % 3]
            p.grad = d.to(p.dtype) if step >= 3 or k != 1 else None
        optimizer.step()
    states = [optimizer.state[p] for p in group["params"]]
    return [*group["params"], *(x for state in states for x in state.values() if x is not None)]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return list(optimizer.param_groups[0]["params"])


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x.view(torch.int32), y.view(torch.int32))  # of NaN and -0, too


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    yield from use("native")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("own", "theirs", "knobs"), CASES, ids=IDS)
def test_a_step_has_the_bits_of_pytorch(own: Any, theirs: Any, knobs: Any, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = [kind(parameters(), lr=0.05, foreach=True, **knobs) for kind in (own, theirs)]
        assert_equal(*(train(optimizer, range(12)) for optimizer in made))
        resumed = own([nn.Parameter(p.detach().clone()) for p in parameters_of(made[1])], lr=0.05)
        resumed.load_state_dict(deepcopy(made[1].state_dict()))
        assert_equal(*(train(optimizer, range(12, 16)) for optimizer in (resumed, made[1])))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("knobs", [{}, {"weight_decay": 0.1}], ids=str)
def test_the_momentum_of_powersgd_has_the_bits_of_eager_code(knobs: Any) -> None:
    ours = train(PowerSGDMomentum(parameters(), lr=0.05, momentum=0.9, **knobs), range(3, 12))
    use_backend("eager")
    theirs = train(PowerSGDMomentum(parameters(), lr=0.05, momentum=0.9, **knobs), range(3, 12))
    assert_equal(ours, theirs)


def test_other_tensors_are_left_to_pytorch() -> None:
    x = torch.zeros(4, 6)
    assert are_native([x], [x])
    for other in (x.half(), x.t(), x.double(), x[:, :3], x.to_sparse(), x.to("meta")):
        assert not are_native([x], [other])
        assert not are_native([other], [other])
    halves = [kind(parameters(torch.bfloat16), lr=0.05, momentum=0.9) for kind in PAIR]
    ours, theirs = (train(optimizer, range(5)) for optimizer in halves)
    assert all(map(torch.equal, ours, theirs))
