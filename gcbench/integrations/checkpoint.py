"""A compressor's state in the checkpoints of `torch.distributed.checkpoint`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from gcbench.core.library.compression import Compression


class EachRank:
    """The states of all processes as a Stateful of `torch.distributed.checkpoint`.

        compression = gcbench.compress(fully_shard(model), "qsgd", bits=4, error_feedback=True)
        states = {"model": model, "optimizer": optimizer, "compression": EachRank(compression)}
        dcp.save(states, checkpoint_id="step-1000")  # and dcp.load

    A checkpoint merges what has one name in all processes, and residuals differ: each process has a
    name and writes its own.
    """

    def __init__(self, handle: Compression) -> None:
        self.handle = handle

    def state_dict(self) -> dict[str, bytes]:
        """Return this process's state under a name of its own."""
        torch.save(self.handle.state_dict(), file := io.BytesIO())
        return {self._name: file.getvalue()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned in this process."""
        self.handle.load_state_dict(torch.load(io.BytesIO(state_dict[self._name])))

    @property
    def _name(self) -> str:
        return f"rank_{dist.get_rank()}"
