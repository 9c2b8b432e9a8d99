"""A compressor as a kwargs handler of Hugging Face's accelerate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.library.compress import compress
from gcbench.core.library.compression import Compression
from gcbench.integrations import refuse_without

TESTED = "1.15.*"


class CompressionKwargs(DistributedDataParallelKwargs):
    """The arguments of accelerate's DDP, and a compressor for what it exchanges.

        accelerator = Accelerator(kwargs_handlers=[CompressionKwargs("powersgd", rank=2)])
        accelerator.register_for_checkpointing(accelerator.ddp_handler)  # save_state, load_state
        ...
        print(accelerator.ddp_handler.handles[0].ratio)

    `prepare` calls `gcbench.compress` for each model of which it makes a DDP, with these arguments.
    `ddp` are those of DistributedDataParallelKwargs. FSDP2 takes no such handler: type
    `gcbench.compress(accelerator.prepare(model), ...)`.
    """

    def __init__(
        self, compressor: str | Compressor, *, ddp: Mapping[str, Any] | None = None, **knobs: Any
    ) -> None:
        refuse_without(
            DistributedDataParallelKwargs, "register_comm_hook", "to_kwargs", tested=TESTED
        )
        super().__init__(**(ddp or {}))
        self._plain = DistributedDataParallelKwargs(**(ddp or {}))
        self._compress: Callable[[nn.Module], Compression] = partial(
            compress, compressor=compressor, **knobs
        )
        self._handles: list[weakref.ref[Compression]] = []  # each lives as long as its DDP

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # accelerate looks for the exact class
        return DistributedDataParallelKwargs

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments of DDP that are not the default ones."""
        kwargs: dict[str, Any] = self._plain.to_kwargs()
        return kwargs

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Compress what a DDP exchanges; accelerate calls this when it has made one."""
        super().register_comm_hook(model)  # of which `compress` says that there must be none
        self._handles.append(weakref.ref(self._compress(model)))

    @property
    def handles(self) -> list[Compression]:
        """Return the handles of the models that were prepared and still exist, in this order."""
        return [handle for ref in self._handles if (handle := ref()) is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all processes on the main one; all of them have to call this."""
        return {"models": [handle.state_dict(gather_to=0) for handle in self._prepared()]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore this process's part of what `state_dict` returned on the main one."""
        handles, states = self._prepared(), state_dict["models"]
        if len(handles) != len(states):
            raise ConfigError(
                f"the saved state is of {len(states)} models, and accelerator.prepare has made "
                f"{len(handles)} DDPs; type accelerator.load_state after preparing the same models"
            )
        for handle, state in zip(handles, states, strict=True):
            handle.load_state_dict(state)

    def _prepared(self) -> list[Compression]:
        if not self.handles:
            raise ConfigError(
                "CompressionKwargs: accelerator.prepare has made no DDP with it; type "
                "Accelerator(kwargs_handlers=[...]) and prepare(model) in several processes, as "
                "under accelerate launch, before this"
            )
        return self.handles
