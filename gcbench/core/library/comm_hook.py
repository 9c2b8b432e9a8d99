"""A compressor as the two arguments of `register_comm_hook`, for loops that others wrote."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.comm.ddp import DdpHook
from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.library.compress import compress_ddp, read_typed
from gcbench.core.library.compression import Compression, Typed, Workers
from gcbench.core.library.overlap import Overlap

Hook = Callable[["HookState", Any], torch.futures.Future[Tensor]]


def comm_hook(
    compressor: str | Compressor,
    *,
    seed: int = 1,
    codec_backend: str = "auto",
    error_every: int | None = None,
    overlap: Overlap = False,
    **knobs: Any,
) -> tuple[HookState, Hook]:
    """Return a state and a hook for whoever calls `ddp.register_comm_hook(state, hook)`.

        state, hook = gcbench.comm_hook("powersgd", rank=2)
        strategy = DDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook)      # Lightning
        ...
        print(state.ratio, state.bits_sent)     # the handle that `compress` would return

    It does what `compress(ddp, ...)` does, with the same arguments, updates, bits and saved states,
    from the first forward pass of that DDP in training on. Parameters have the names that they have
    in the model, and are exchanged over the DDP's process group. A state belongs to one DDP.

    Raises:
        ConfigError: if the compressor or a knob does not fit. What does not fit the DDP is told in
            its first forward pass.
    """
    state = HookState(read_typed(compressor, knobs, seed, error_every, overlap), codec_backend)
    return state, HookState.__call__


class HookState:
    """The state of a hook of `comm_hook`, and the handle of its compressor.

    Before its DDP's first forward pass nothing was sent, and a state that is loaded waits for that.
    """

    def __init__(self, typed: Typed, codec_backend: str) -> None:
        self._arguments = (typed, codec_backend)
        self._compression: Compression | None = None
        self._hook: DdpHook | None = None
        self._waiting: list[Callable[[Compression], None]] = []
        # DDP tells a hook nothing of itself, and a bucket no names.
        found = register_module_forward_pre_hook(_finder(weakref.ref(self)))
        self._stop_looking = weakref.finalize(self, found.remove)

    def find(self, ddp: DistributedDataParallel) -> None:
        """Begin to compress what `ddp` exchanges, if this state was registered with it."""
        if not any(state is self for _, state in ddp._comm_hooks):
            return
        hook = DdpHook.behind(ddp)
        compression = compress_ddp(ddp, *self._arguments)
        for act in self._waiting:
            act(compression)
        self._compression, self._hook = compression, hook
        self._stop_looking()
        hook.begin_forward(ddp)  # PyTorch has already listed the hooks of this pass

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Exchange a bucket of gradients."""
        if self._hook is None:
            raise ConfigError(
                "comm_hook: DDP exchanges gradients of a forward pass that was not seen; type "
                "ddp(inputs), not ddp.forward(inputs)"
            )
        return self._hook(bucket)

    def __reduce__(self) -> tuple[Any, ...]:
        """Save what was typed, as for processes to be started, and nothing once it is in use."""
        return (type(None), ()) if self._compression else (HookState, self._arguments)

    def __repr__(self) -> str:
        if self._compression:
            return repr(self._compression)
        return f"<gcbench.comm_hook {self._arguments[0].name}: not used>"

    @property
    def bits_sent(self) -> int:
        """Payload bits that this worker handed to collectives so far."""
        return self._compression.bits_sent if self._compression else 0

    @property
    def ratio(self) -> float:
        """Bits of fp32 gradients over bits sent; NaN before the first exchange."""
        return self._compression.ratio if self._compression else math.nan

    @property
    def memory(self) -> int:
        """Bytes of the compressor's state in this process."""
        return self._compression.memory if self._compression else 0

    def error(self) -> float:
        """Return the relative error of the update, see `Compression.error`."""
        return self._in_use("error").error()

    def cosine(self) -> float:
        """Return the cosine between the update and what was coded, see `Compression.cosine`."""
        return self._in_use("cosine").cosine()

    def state_dict(self, gather_to: int | None = None) -> dict[str, Any]:
        """Return the compressor's state for `torch.save`, see `Compression.state_dict`."""
        return self._in_use("state_dict").state_dict(gather_to)

    def load_state_dict(self, state_dict: Mapping[str, Any], workers: Workers = "refuse") -> None:
        """Restore what `state_dict` returned, now or in DDP's first forward pass."""
        self._now_or_then(lambda compression: compression.load_state_dict(state_dict, workers))

    def remove(self) -> None:
        """Let DDP average gradients without a compressor."""
        self._now_or_then(lambda compression: compression.remove())

    def _now_or_then(self, act: Callable[[Compression], None]) -> None:
        if self._compression:
            act(self._compression)
        else:
            self._waiting.append(act)

    def _in_use(self, name: str) -> Compression:
        if self._compression is None:
            raise ConfigError(
                f"{name}: no DistributedDataParallel has used this hook yet; type "
                "ddp.register_comm_hook(state, hook), and call this after a step"
            )
        return self._compression


HookState.__call__.__annotations__.clear()  # DDP looks for types there, and would find strings


def _finder(state: weakref.ref[HookState]) -> Callable[[nn.Module, Any], None]:
    def look(module: nn.Module, _inputs: Any) -> None:
        module = getattr(module, "_orig_mod", module)  # torch.compile calls hooks of its own module
        own = state()
        if own and isinstance(module, DistributedDataParallel) and torch.is_grad_enabled():
            own.find(module)

    return look
