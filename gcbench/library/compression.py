"""A compressor in the backward passes of a module, with its state and how that is saved."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.codecs.kernels import keep_dynamo
from gcbench.comm import Comm
from gcbench.compressors import (
    Aggregated,
    Compressor,
    Grads,
    State,
    parts_of,
    refuse_other_update,
)
from gcbench.compressors.matrices import StacksOfMatrices
from gcbench.compressors.virtual import aggregate
from gcbench.config import ConfigError
from gcbench.identity import digest
from gcbench.train.finite import not_finite


@dataclass
class Exchange:
    """The state of gradients that are exchanged together, and the number of exchanges so far."""

    seed: int
    step: int = 0
    state: State = field(default_factory=State)

    def keep(
        self, state: State, seen: Iterable[Tensor], group: dist.ProcessGroup | None = None
    ) -> bool:
        """Store `state` if all `seen` tensors `[1, ...]` are finite; else keep the old state.

        The processes of `group` decide together: if one has seen a bad value, none stores. Returns
        whether it was stored.
        """
        bad = not_finite(seen).float()
        if group is not None:
            dist.all_reduce(bad, dist.ReduceOp.MAX, group)
        if bad.item():
            return False
        self.state = state
        return True


class Compression(ABC):
    """A compressor in the backward passes of a module, made by `compress`."""

    def __init__(
        self,
        compressor: Compressor,
        comm: Comm,
        device: torch.device,
        seeds: Mapping[str, int],
        **place: int | str,
    ) -> None:
        """Take the seed of each exchange of a backward pass, by name.

        `place` holds further values that a saved state must match, such as a shard's number.
        """
        self.compressor = compressor
        self._comm = comm
        self._device = device
        self._exchanges = {name: Exchange(seed) for name, seed in seeds.items()}
        self._fp32_bits = self._own_bits = 0  # since this was made, which need not be all steps
        self._told = False
        self._identity = {
            "compressor": re.sub(r" at 0x[0-9a-f]+", "", repr(compressor)),  # without addresses
            "workers": comm.workers,
            "worker": comm.local.start,
            **place,
        }
        self._refuse_other_workers(seeds)

    def _refuse_other_workers(self, seeds: Mapping[str, int]) -> None:
        """Raise ConfigError unless all workers have the same compressor and the same seeds."""
        if self._comm.transport is None:
            return
        own = digest([self._identity["compressor"], dict(seeds)]).encode()
        message = torch.frombuffer(bytearray(own), dtype=torch.uint8).unsqueeze(0)
        everyone = self._comm.transport.all_gather(message.to(self._device))
        for worker, digits in enumerate(everyone):
            if not torch.equal(digits, everyone[0]):
                raise ConfigError(
                    f"worker {worker} called compress with other arguments than worker 0; worker "
                    f"{self._identity['worker']}, this one, has {self._identity['compressor']}; "
                    "type the same method, knobs and seed on all workers"
                )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.compressor!r}, workers={self._comm.workers}, "
            f"bits_sent={self.bits_sent})"
        )

    @property
    def bits_sent(self) -> int:
        """Payload bits that this worker handed to collectives so far, as in `result.json`."""
        return self._comm.meter.sent_bits[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the steps, the bits and the compressor's state, for `torch.save`.

        The residual differs between workers: each must save and load its own state.
        """
        return {
            **self._identity,
            "steps": {name: exchange.step for name, exchange in self._exchanges.items()},
            "states": {
                name: [(layer.shared, layer.per_worker) for layer in exchange.state.layers()]
                for name, exchange in self._exchanges.items()
            },
            "traffic": self._comm.meter.state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ConfigError if it is not this worker's."""
        expected = {**self._identity, "parts": list(self._exchanges)}
        saved = {**state_dict, "parts": list(state_dict.get("steps", ()))}
        for key, value in expected.items():
            if saved.get(key) != value:
                raise ConfigError(
                    f"the saved state has {key}={saved.get(key)}, and this compression has "
                    f"{value}; load what this worker saved, with the same model, "
                    "compressor and number of workers"
                )
        for name, exchange in self._exchanges.items():
            exchange.step = state_dict["steps"][name]
            exchange.state = State.of_layers(
                [
                    (self._to_device(shared), self._to_device(per_worker))
                    for shared, per_worker in state_dict["states"][name]
                ]
            )
        self._comm.meter.load(state_dict["traffic"])

    @abstractmethod
    def remove(self) -> None:
        """Let the module average gradients without a compressor."""

    def _aggregate(self, exchange: Exchange, rows: Grads, like: Grads | None = None) -> Aggregated:
        """Return the aggregate of all workers' gradients; its state is not stored yet.

        The update has the shapes of `rows`, or else those of `like`.
        """
        device, before = next(iter(rows.values())).device, self.bits_sent
        # A backward pass may run under autocast.
        with torch.autocast(device.type, enabled=False), keep_dynamo():
            out = aggregate(
                self.compressor,
                rows,
                number=exchange.step,
                seed=exchange.seed,
                state=exchange.state,
                comm=self._comm,
            )
        refuse_other_update(out.update, like or rows)
        exchange.step += 1
        self._own_bits += self.bits_sent - before
        self._fp32_bits += 32 * sum(row.numel() for row in rows.values())
        if exchange.step >= 2:  # two kinds of messages may take turns
            self._warn_if_more_than_fp32()
        return out

    def _warn_if_more_than_fp32(self) -> None:
        if self._told or self._own_bits <= self._fp32_bits:
            return
        self._told = True
        larger = any(isinstance(part, StacksOfMatrices) for part in parts_of(self.compressor))
        warnings.warn(
            f"compressed: {self._own_bits / self._fp32_bits:.4g} times as many bits as of fp32 "
            "gradients; type "
            + ("min_ratio=1, or a lower rank" if larger else "other knobs, or another method"),
            stacklevel=2,
        )

    def _to_device(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self._device) for name, tensor in tensors.items()}
