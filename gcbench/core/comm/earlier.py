"""What `p.grad` holds from earlier exchanges while a backward pass under DDP adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

Content = Literal["unknown", "new", "update", "mixed", "inseparable"]


class EarlierUpdates:
    """Keeps the updates of earlier exchanges out of the buckets of one, and adds them afterwards.

    DDP's buckets hold `p.grad`. Where neither `zero_grad()` nor `no_sync()` separates two backward
    passes, that is the last update plus a new gradient, and a method would take its own update for
    a gradient. So the update is copied, and `p.grad` set to zero, when a gradient arrives; after
    the exchange it is added again. Nothing is copied where `p.grad` is None or zero by then.
    """

    def __init__(self) -> None:
        # What p.grad held when the first gradient arrived. An update is mixed with gradients that
        # DDP does not exchange until zero_grad() or, inseparable from these, until the exchange.
        self._content: Content = "unknown"
        self._updates: dict[nn.Parameter, Tensor] = {}
        self._arrived: set[nn.Parameter] = set()
        self._is_expected = False  # DDP exchanges the gradients that arrive

    def expect(self) -> bool:
        """Note a forward pass of which DDP exchanges the gradients; return whether one was noted.

        After several, a gradient may arrive when p.grad has the update of another.
        """
        before, self._is_expected = self._is_expected, True
        return before

    def begin(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Note a forward pass; return whether what then arrives in p.grad is known to be new."""
        if self._content == "unknown" and all(p.grad is None for p in parameters):
            self._content = "new"
        return self._content == "new"

    def arrive(self, p: nn.Parameter, parameters: Mapping[nn.Parameter, str]) -> None:
        """Set aside what `p.grad` holds, before the pass adds to it."""
        if self._content in ("new", "inseparable"):
            return
        if self._content == "mixed" and not self._is_expected:
            return
        if self._content in ("unknown", "mixed"):
            self._content = self._read(parameters)
        if self._content == "update" and p not in self._arrived:
            self._arrived.add(p)
            if p.grad is not None:
                self._updates[p] = p.grad.clone()
                p.grad.zero_()

    def _read(self, parameters: Mapping[nn.Parameter, str]) -> Content:
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients or not nn.utils.get_total_norm(gradients, torch.inf):
            return "new"  # The norm waits for the device, but only where p.grad is kept.
        if self._content == "mixed":
            return "inseparable"
        return "update" if self._is_expected else "mixed"

    def take_out(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Leave only new gradients in these parts of the buckets.

        Raises:
            ValueError: if new gradients that DDP did not exchange have been added to an update.
        """
        if self._content in ("mixed", "inseparable"):
            raise ValueError(
                "p.grad holds an update and gradients that DDP did not exchange, such as those of "
                "no_sync() or of the bare module; type optimizer.zero_grad() after "
                "optimizer.step(), and no_sync() for all micro-batches but the last"
            )
        if self._content == "update":
            for p, gradient in gradients.items():
                if p not in self._arrived and p.grad is not None:  # This pass did not use it.
                    self._updates[p] = gradient.clone()
                    gradient.zero_()

    def updates(self) -> list[Tensor] | None:
        """Return the updates that were in the buckets.

        None if no gradient arrived here since the last exchange: this worker has no inputs.
        """
        return None if self._content == "unknown" else list(self._updates.values())

    def put_back(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Add the earlier updates to the new ones."""
        for p in self._updates.keys() & gradients.keys():
            gradients[p].add_(self._updates[p])
