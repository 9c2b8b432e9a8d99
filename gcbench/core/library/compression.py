"""A compressor in the backward passes of a module, with its state and how that is saved."""

from __future__ import annotations

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.codecs.kernels import backend_in_use
from gcbench.core.codecs.noise import count
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.control import gather_json
from gcbench.core.compressor import Aggregated, Compressor, Grads, State, refuse_other_update
from gcbench.core.library.agreement import agree, choose, refuse_difference, refuse_other_arguments
from gcbench.core.library.errors import Errors
from gcbench.core.library.states import (
    by_name,
    own_state,
    read_state,
    read_steps,
    refuse_other_identity,
    refuse_other_traffic,
    to_plain,
)
from gcbench.core.methods.matrices import StacksOfMatrices
from gcbench.core.wrappers.virtual import aggregate, is_direction, parts_of, state_bytes


@dataclass
class Exchange:
    """The state of gradients that are exchanged together, and the number of exchanges so far."""

    seed: int
    step: int = 0
    state: State = field(default_factory=State)
    offsets: Mapping[str, int] | None = None  # of all tensors, where only some are sent at once


class Compression(ABC):
    """A compressor in the backward passes of a module, made by `compress`."""

    maker: ClassVar[str] = "compress"

    def __init__(
        self,
        compressor: Compressor,
        comm: Comm,
        device: torch.device,
        seed: int,
        exchanges: Mapping[str, Exchange],
        error_every: int | None = None,
        overlap: bool | str = False,
        **place: Any,
    ) -> None:
        """Take the user's seed, and the exchanges of a backward pass by name, none made yet.

        `place` holds further values that a saved state must match, such as a shard's number.
        """
        self.compressor = compressor
        self.name = type(compressor).__name__  # or what was typed, see `compress`
        self._errors = Errors(error_every, comm)
        self._comm = comm
        self._device = device
        self._exchanges: Mapping[str, Exchange] = exchanges
        self._fp32_bits = self._own_bits = 0  # since this was made, which need not be all steps
        self._told = self._told_of_sum = False
        # What `judge` found, and as much of it as has reached the host, which never waits for it.
        self._verdict = torch.zeros(1, dtype=torch.int64, device=device)
        self._arrived_verdict = torch.zeros(
            1, dtype=torch.int64, pin_memory=device.type == "cuda" and torch.cuda.is_available()
        )
        self._identity = {
            "compressor": re.sub(r" at 0x[0-9a-f]+", "", repr(compressor)),  # without addresses
            "workers": comm.workers,
            "worker": comm.local.start,
            **place,
        }
        seeds = {name: exchange.seed for name, exchange in exchanges.items()}
        self._refuse_other_arguments(
            {
                "seed": seed,
                "compressor": self._identity["compressor"],
                "seeds": seeds,
                "error_every": error_every,
                "overlap": overlap,
                # Products of matrices are rounded differently, so that replicas would drift apart.
                "codec_backend": backend_in_use(),
            }
        )

    def _refuse_other_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise ConfigError unless all workers have these."""
        refuse_other_arguments(self.maker, self._gather(arguments))

    def _gather(self, value: Any) -> list[Any]:
        """Return what each worker has, which JSON can represent."""
        transport = self._comm.transport
        if transport is None:
            return [value]

        def gather(x: Tensor) -> list[Tensor]:
            message = x.view(torch.uint8).unsqueeze(0).to(self._device)
            return [row.view(x.dtype) for row in transport.all_gather(message).cpu()]

        return gather_json(value, gather)

    def __repr__(self) -> str:
        steps = max(exchange.step for exchange in self._exchanges.values())
        return (
            f"<gcbench.{self.maker} {self.name}: {self._comm.workers} workers, {steps} exchanges, "
            f"{self.ratio:.4g}x fewer bits than fp32 gradients>"
        )

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Save nothing with an object that holds this handle, which belongs to its processes."""
        warnings.warn(
            "a handle of gcbench.compress is copied and saved as None, as it belongs to its "
            "module; save handle.state_dict() to keep the compressor's state",
            stacklevel=2,
        )
        return type(None), ()

    @property
    def bits_sent(self) -> int:
        """Payload bits that this worker handed to collectives so far, as in `result.json`."""
        return self._comm.meter.sent_bits[0]

    @property
    def ratio(self) -> float:
        """Bits of fp32 gradients over bits sent, in all exchanges of this handle; NaN before.

        Those of fp32 are what `none` hands to the same collectives: all values in an all-reduce,
        and those of the other workers' shards in FSDP2's reduce-scatter.
        """
        return self._fp32_bits / self._own_bits if self._own_bits else math.nan

    @property
    def memory(self) -> int:
        """Bytes of the compressor's state in this process, such as its error-feedback residual."""
        return sum(state_bytes(state) for state in self._states())

    def _states(self) -> Iterable[State]:
        return (exchange.state for exchange in self._exchanges.values())

    def error(self) -> float:
        """Return the relative error |y - x| / |x| of the update y, as in a run's result.

        x is the mean of what workers coded: their gradients, or what a method makes of these, such
        as momenta. It is that of the last exchange in which it was measured,
        `compress(error_every=...)`; NaN before, and of updates without a scale, such as signs.
        With FSDP2 it is that of the gradients that this process owns.

        Raises:
            ConfigError: if `compress` was called without `error_every`.
        """
        return self._errors.last("relative", self.compressor)

    def cosine(self) -> float:
        """Return the cosine between the update and the mean of what was coded, see `error`."""
        return self._errors.last("cosine", self.compressor)

    def state_dict(self, gather_to: int | None = None) -> dict[str, Any]:
        """Return the steps, the bits and the compressor's state, for `torch.save`.

        The residual differs between workers: each saves and loads its own state. For a checkpoint
        that one process writes, all processes call this with its rank as `gather_to`; it returns
        the states of all there, of which `load_state_dict` takes its own, and {} elsewhere.
        """
        if gather_to is None:
            return self._state()
        here = dist.get_rank() == gather_to
        states: list[Any] = [None] * dist.get_world_size() if here else []
        dist.gather_object(self._state(), states if here else None, dst=gather_to)
        return {"processes": states} if here else {}

    def _state(self) -> dict[str, Any]:
        return {
            **self._identity,
            "name": self.name,
            "steps": {name: exchange.step for name, exchange in self._exchanges.items()},
            "states": {name: to_plain(x.state) for name, x in self._exchanges.items()},
            "traffic": self._comm.meter.state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned on this worker, or gathered from all.

        Raises:
            ConfigError: if it is not this worker's state, or damaged; nothing is replaced then.
        """
        own = own_state(state_dict)
        self._replace(self._read(own), own)

    def _replace(self, exchanges: Mapping[str, Exchange], saved: Mapping[str, Any]) -> None:
        self._exchanges = exchanges
        self._comm.meter.load(saved["traffic"])

    def _read(self, saved: Mapping[str, Any]) -> Mapping[str, Exchange]:
        """Return the exchanges that were saved. Raises ConfigError if they are not these."""
        refuse_other_identity(saved, self._identity, self.name)
        steps = read_steps(saved, self._exchanges)
        refuse_other_traffic(saved)
        states = by_name(saved, "states", self._exchanges)
        read = {
            name: replace(own, step=steps[name], state=read_state(states[name], self._device))
            for name, own in self._exchanges.items()
        }
        return {name: self._check(name, exchange, saved) for name, exchange in read.items()}

    @abstractmethod
    def _check(self, name: str, read: Exchange, saved: Mapping[str, Any]) -> Exchange:
        """Return the exchange `read` from `saved`. Raises ConfigError if its state does not fit."""

    @abstractmethod
    def remove(self) -> None:
        """Let the module average gradients without a compressor."""

    def _aggregate(self, exchange: Exchange, rows: Grads, like: Grads | None = None) -> Aggregated:
        """Return the aggregate of all workers' gradients; its state is not stored yet.

        The update has the shapes of `rows`, or else those of `like`.
        """
        device, before = next(iter(rows.values())).device, self.bits_sent
        # A backward pass may run under autocast.
        with torch.autocast(device.type, enabled=False):
            out = aggregate(
                self.compressor,
                rows,
                number=exchange.step,
                seed=exchange.seed,
                state=exchange.state,
                comm=self._comm,
                offsets=exchange.offsets,
            )
        refuse_other_update(out.update, like or rows)
        self._errors.measure(exchange.step, out.goal_of(rows))
        exchange.step += 1
        self._own_bits += self.bits_sent - before
        self._fp32_bits += self._bits_of_fp32(sum(row.numel() for row in rows.values()))
        if exchange.step >= 2:  # two kinds of messages may take turns
            self._warn_if_more_than_fp32()
        return out

    def _bits_of_fp32(self, values: int) -> int:
        """Return the bits that a worker sends of so many values without compression."""
        return 32 * values

    def _warn_of_sum(self, leave_out: str) -> None:
        """Warn once where updates add up in p.grad though they have no scale; `leave_out` says how
        to exchange only the last of them.
        """
        if self._told_of_sum or not is_direction(self.compressor):
            return
        self._told_of_sum = True
        warnings.warn(
            "p.grad holds an update, and another one is added to it. Updates of this method have "
            "the same size however small their gradients are, so that a step of k micro-batches "
            f"is up to k times as long; type {leave_out} for all of them but the last",
            stacklevel=2,
        )

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

    def _keep(
        self, exchange: Exchange, state: State, bad: Tensor, group: dist.ProcessGroup | None
    ) -> Tensor:
        """Store `state` unless a process of `group` has seen a `bad` value; return whether any has.

        Else they keep the old state.
        """
        bad, _ = self._agree(exchange, bad, group)
        exchange.state = choose(bad, exchange.state, state)
        return bad

    def _agree(
        self,
        exchange: Exchange,
        bad: Tensor,
        group: dist.ProcessGroup | None,
        earlier: Sequence[Tensor] | None = None,
        used: Mapping[str, bool] | None = None,
    ) -> tuple[Tensor, list[str]]:
        """Return whether a process of `group` has seen a `bad` value, and what none of them `used`.

        A GPU decides that itself, and the host does not wait for it unless `used` is told, or the
        state that is chosen has other tensors than before, as in the first exchange.

        Raises:
            ConfigError: if they have made different numbers of exchanges, or have different
                `earlier` updates, where None stands for any. On a GPU in a later exchange.
        """
        if group is None:
            return bad, []
        number = count(exchange.seed, exchange.step, self._device)
        decided = agree(bad, number, earlier, used, group, self._verdict)
        self._arrived_verdict.copy_(self._verdict, non_blocking=True)
        self._refuse_difference(int(self._arrived_verdict))
        return decided

    def _refuse_difference(self, verdict: int) -> None:
        refuse_difference(verdict, self._identity["worker"])
