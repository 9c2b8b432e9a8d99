"""Steps of a method on another device, to be run in a process of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from method_cases import aggregate, compressor_of, gradients
from other_device import OtherDevice, There, bring_back, move_there
from torch import Tensor

from gcbench.core.compressor import Compressor, Grads, State

WORKERS = range(4)


def two_steps(
    compressor: Compressor, taken: Callable[[Tensor], Tensor] = torch.clone
) -> tuple[list[Grads], State]:
    """Return the update and the sent values of each step, and the last state."""
    seen, state = [], State()
    for number in range(2):
        grads = {k: taken(g) for k, g in gradients(WORKERS, number).items()}
        out = aggregate(compressor, grads, number=number, state=state)
        seen += [out.update, out.sent()]
        state = out.state
    return seen, state


def check_stays_on_its_device(choice: str, variant: str) -> None:
    compressor = compressor_of(choice, variant)
    expected, _ = two_steps(compressor)
    with OtherDevice():
        outputs, state = two_steps(compressor, move_there)
    for a, b in zip(outputs, expected, strict=True):
        torch.testing.assert_close({k: bring_back(x) for k, x in a.items()}, b)
    remembered = [
        x for layer in state.layers() for x in (*layer.shared.values(), *layer.per_worker.values())
    ]
    assert all(isinstance(x, There) for x in remembered)
