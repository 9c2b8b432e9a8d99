"""DistributedDataParallel's buckets: which gradients travel together, and when they arrive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle


class Arrived(NamedTuple):
    """Gradients that are exchanged together: the same object in each backward pass, while DDP keeps
    its buckets.
    """

    gradients: Mapping[nn.Parameter, Tensor]  # views of the buffers, which they fill
    buffers: Sequence[Tensor]


class Receiver(Protocol):
    """An object that exchanges gradients in the place of DDP."""

    by_bucket: bool  # takes each bucket when it is complete, and else all of them after the last

    def begin_forward(self, ddp: DistributedDataParallel) -> None:
        """Note a forward pass that a backward pass may follow."""

    def take(self, arrived: Arrived) -> Any:
        """Begin to replace new gradients in place by an update; `finish` gets what is returned."""

    def finish(
        self,
        taken: Sequence[Any],
        earlier: Sequence[Tensor] | None,
        used: Collection[nn.Parameter] | None,
    ) -> None:
        """Wait for all updates of a backward pass.

        They are added to the `earlier` ones (None: no inputs here). DDP does not apply those of
        parameters that no worker `used` (None: it applies all).
        """


class DdpHook:
    """The hook of a DDP, which passes its gradients on to a receiver.

    DDP takes one hook, once: while `receiver` is None, it averages as if there were no hook.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.receiver: Receiver | None = None
        self._earlier = EarlierUpdates()
        self._watched: dict[nn.Parameter, str] = {}
        self._watching: dict[nn.Parameter, RemovableHandle] = {}
        self._adds_up = False  # p.grad was kept, or passes overlapped: each arrival is watched
        self._group = ddp.process_group
        self._buckets: list[Arrived] = []  # of the last pass, then of this one
        self._arrived: Arrived | None = None  # all of these together
        self._waiting: list[tuple[torch.futures.Future[Tensor], Tensor]] = []
        self._taken: list[tuple[Arrived, Any]] = []
        self._used: set[nn.Parameter] = set()  # those that got a gradient since the last exchange
        self._drops = _drops_updates(ddp)
        ddp.register_forward_pre_hook(partial(_begin_forward, self))

    @staticmethod
    def of(ddp: DistributedDataParallel) -> DdpHook:
        """Return the hook of `ddp`. Raises RuntimeError if it has another one."""
        if ddp not in _hooks:
            hook = DdpHook(ddp)
            # A function of the module, as `torch.save(ddp)` also saves the hook.
            ddp.register_comm_hook(hook, DdpHook.__call__)
            _hooks[ddp] = hook
        return _hooks[ddp]

    @staticmethod
    def behind(ddp: DistributedDataParallel) -> DdpHook:
        """Return the hook of `ddp` for a state that was registered with it and calls this hook."""
        if ddp not in _hooks:
            _hooks[ddp] = DdpHook(ddp)
        return _hooks[ddp]

    def watch(self, parameters: Mapping[nn.Parameter, str]) -> None:
        """Note the names of the parameters that are exchanged."""
        self._watched |= parameters
        if not self._watching:
            self._earlier, self._used = EarlierUpdates(), set()
        self._watch_arrivals()

    def _watch_arrivals(self) -> None:
        """Have each gradient call `_arrive`, which takes longer than to exchange a small tensor."""
        for p in self._watched:
            if p.requires_grad and p not in self._watching:
                self._watching[p] = p.register_hook(partial(self._arrive, p))

    def _stop_watching(self) -> None:
        for handle in self._watching.values():
            handle.remove()
        self._watching = {}

    @torch.no_grad()
    def _arrive(self, p: nn.Parameter, gradient: Tensor | None) -> None:
        """Prepare `p.grad` for a gradient that is about to be added to it."""
        if self.receiver is not None and gradient is not None:
            refuse_sparse_gradient(self._watched[p], gradient)
            self._earlier.arrive(p, self._watched)
            self._used.add(p)

    def begin_forward(self, ddp: DistributedDataParallel) -> None:
        """Note a forward pass, of which DDP exchanges the gradients or does not."""
        if self.receiver is not None:
            self.receiver.begin_forward(ddp)
        if not ddp._has_rebuilt_buckets:  # DDP is about to, and frees the old ones before
            self._buckets, self._arrived = [], None
        if ddp.require_backward_grad_sync and self._earlier.expect():
            self._adds_up = True
        # From the second exchange on, nothing has to be set aside while p.grad is None here.
        if self._arrived and self.receiver is not None and not self._adds_up:
            self._adds_up = not self._earlier.begin(self._watched)
            if not (self._adds_up or self._drops):
                self._stop_watching()
        self._drops = _drops_updates(ddp)
        if self._adds_up or self._drops:
            self._watch_arrivals()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Save nothing with a DDP, which has no hook when it is loaded, whatever hook it had."""
        return type(None), ()

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        if self.receiver is None:
            return allreduce_hook(self._group, bucket)
        index, buffer = bucket.index(), bucket.buffer()
        if index == 0:  # A backward pass that failed may have left some.
            self._waiting, self._taken = [], []
        if index >= len(self._buckets) or self._buckets[index].buffers[0] is not buffer:
            del self._buckets[index:]
            self._buckets.append(Arrived(_gradients_of(bucket), [buffer]))
            self._arrived = None
        on_gpu = buffer.device.type == "cuda"
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[buffer.device] if on_gpu else None
        )
        self._waiting.append((future, buffer))
        if bucket.is_last() and self._arrived is None:
            self._arrived = Arrived(
                {p: g for one in self._buckets for p, g in one.gradients.items()},
                [buffer for one in self._buckets for buffer in one.buffers],
            )
        arrived = self._buckets[index] if self.receiver.by_bucket else self._arrived
        if arrived and (self.receiver.by_bucket or bucket.is_last()):
            self._earlier.take_out(arrived.gradients)
            self._taken.append((arrived, self.receiver.take(arrived)))
        if bucket.is_last():
            self._finish(self.receiver)
        return future

    def _finish(self, receiver: Receiver) -> None:
        taken = [taken for _, taken in self._taken]
        receiver.finish(taken, self._earlier.updates(), self._used if self._drops else None)
        for arrived, _ in self._taken:
            self._earlier.put_back(arrived.gradients)
        self._earlier, self._used = EarlierUpdates(), set()
        for waiting, exchanged in self._waiting:
            waiting.set_result(exchanged)
        self._waiting, self._taken = [], []


DdpHook.__call__.__annotations__.clear()  # DDP looks for types there, and would find strings
_hooks: WeakKeyDictionary[DistributedDataParallel, DdpHook] = WeakKeyDictionary()


def _drops_updates(ddp: DistributedDataParallel) -> bool:
    """Return whether DDP drops the update of a parameter that no worker used."""
    return bool(ddp.find_unused_parameters or ddp.static_graph)


def _gradients_of(bucket: Any) -> dict[nn.Parameter, Tensor]:
    """Return the gradients of a bucket by parameter, as views of its buffer.

    They have the strides of their parameters (for example channels last), unlike the views that
    DDP hands out; a parameter with gaps, such as a slice of another tensor, has a contiguous one.
    """
    return {
        p: g.as_strided(p.shape, p.stride()) if _is_dense(p) else g
        for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True)
    }


def _is_dense(p: Tensor) -> bool:
    return torch.empty_like(p, device="meta").stride() == p.stride()


def _begin_forward(
    hook: DdpHook | None, ddp: DistributedDataParallel, _inputs: tuple[Any, ...]
) -> None:
    if hook is not None and torch.is_grad_enabled():  # None in a DDP that was saved and loaded
        hook.begin_forward(ddp)


def sparse_refusal(name: str) -> str:
    """Return the sentence that refuses the sparse gradients of a module or parameter."""
    return (
        f"{name}: a compressor takes no sparse gradients; type sparse=False where this embedding "
        "is made or called"
    )


def refuse_sparse_gradient(name: str, gradient: Tensor | None) -> None:
    """Raise ValueError if the gradient of the parameter `name` is sparse (None: there is none)."""
    if gradient is not None and gradient.layout is not torch.strided:
        raise ValueError(sparse_refusal(name))


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
