"""When a worker's optimizers have stepped: one or several, also within others that wrap them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import MethodType
from typing import Any

from torch.optim import Optimizer


class OptimizerSteps:
    """Calls `done` when each of some optimizers has stepped since the last call."""

    def __init__(self, optimizers: Sequence[Optimizer], done: Callable[[], None]) -> None:
        self._done: Callable[[], None] | None = done
        self._everyone = set(range(len(optimizers)))
        self._waiting = set(self._everyone)
        for k, optimizer in enumerate(optimizers):
            _watch(optimizer, partial(self._count, k))

    def remove(self) -> bool:
        """Call `done` no more; return whether it would have been called until now."""
        was, self._done = self._done, None
        return was is not None

    def _count(self, optimizer: int) -> None:
        self._waiting.discard(optimizer)
        if not self._waiting and self._done:
            self._waiting = set(self._everyone)
            self._done()


def _watch(optimizer: Optimizer, stepped: Callable[[], None]) -> None:
    """Call `stepped` at the end of each step of an optimizer.

    One that wraps another may do more after the other's step, such as moving slow weights, or skip
    that, as where gradients overflowed; and its own `step` may not be what is called.
    """
    wrapped = [x for x in vars(optimizer).values() if isinstance(x, Optimizer)]
    # Only these call the hooks of PyTorch: `Optimizer.__init__` arranges that.
    if not wrapped and getattr(type(optimizer).step, "hooked", False):
        optimizer.register_step_post_hook(lambda *_: stepped())
        return
    inside, moved = False, False

    def note() -> None:
        nonlocal moved
        moved = True
        if not inside:
            end()

    def end() -> None:
        nonlocal moved
        if moved or not wrapped:
            moved = False
            stepped()

    for inner in wrapped:
        _watch(inner, note)
    step = optimizer.step

    @wraps(step)
    def watched(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        inside = True
        try:
            result = step(*args, **kwargs)
        finally:
            inside = False
        end()
        return result

    # A method, as learning rate schedules take its function.
    optimizer.step = MethodType(watched, optimizer)  # type: ignore[method-assign]
