"""Count passes over memory, because times say little on a shared machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PassCounter(TorchDispatchMode):
    """A context that counts the values of each operation's largest tensor, by phase and operation.

    Lists of tensors count as one tensor; views move nothing and count nothing.
    """

    def __init__(self, phase: Callable[[], str] = str) -> None:
        super().__init__()
        self._phase = phase
        self.values: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            sizes = [_values(argument) for argument in (*args, out)]
            self.values[self._phase(), func._schema.name] += max(sizes)
        return out

    def total(self, *phases: str) -> int:
        """Return the number of values counted in these phases."""
        return sum(count for (phase, _), count in self.values.items() if phase in phases)


def _values(argument: Any) -> int:
    return sum(x.numel() for x in tree_leaves(argument) if isinstance(x, torch.Tensor))
