"""A compressor in the backward passes of a module, with its state and how that is saved."""

from __future__ import annotations

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.codecs.kernels import backend_in_use
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import transport_of, workers_per_host
from gcbench.core.compressor import Compressor, State
from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError, in_one_line
from gcbench.core.library.agreement import differing, gather_json, refuse_other_arguments
from gcbench.core.library.exchange import Exchange, Kept
from gcbench.core.library.overlap import Overlap
from gcbench.core.library.saved import (
    merge_parts,
    merge_totals,
    replaced_shares,
    shared_part,
    unmergeable_reason,
    worker_part,
)
from gcbench.core.library.states import (
    FORMAT,
    StateError,
    by_name,
    not_a_state,
    of_this_format,
    read_kept,
    read_part,
    refuse_other_identity,
    refuse_other_states,
    refuse_other_traffic,
)
from gcbench.core.methods.matrices import StacksOfMatrices
from gcbench.core.parameters import Shape
from gcbench.core.wrappers.virtual import is_direction, parts_of, state_bytes

Workers = Literal["refuse", "merge"]
ADVICE = "load what this worker saved, with the same model, compressor and number of workers"


class Typed(NamedTuple):
    """A compressor as a user typed it: its method, and options that were checked."""

    method: Compressor
    name: str
    config: Config  # the method's keys; empty for a given Compressor
    seed: int = 1
    error_every: int | None = None
    overlap: Overlap = False


class Compression(ABC):
    """A compressor in the backward passes of a module, made by `compress`."""

    maker: ClassVar[str] = "compress"

    def __init__(
        self,
        typed: Typed,
        workers: dist.ProcessGroup,
        device: torch.device,
        kept: Mapping[str, Kept],
        agree: bool = True,
        **place: Any,
    ) -> None:
        """Take what a backward pass exchanges by name, nothing of it yet.

        The `workers` agree on whether values are finite, if they do so. `place` holds further
        values that a saved state must match, such as a shard's number.
        """
        self.compressor = compressor = typed.method
        self.name = typed.name
        comm = Comm(
            workers.size(),
            transport_of(workers, device),
            workers_per_host=workers_per_host(workers),
        )
        self._exchange = Exchange(
            compressor,
            comm,
            device,
            group=workers if agree else None,
            error_every=typed.error_every,
        )
        self._device = device
        self._error_every = typed.error_every
        self._kept: Mapping[str, Kept] = kept
        self._fp32_bits = self._loaded_bits = 0  # since this was made, and before
        self._told = self._told_of_sum = False
        self._identity = {
            "compressor": re.sub(r" at 0x[0-9a-f]+", "", repr(compressor)),  # without addresses
            "workers": comm.workers,
            "worker": comm.local.start,
            **place,
        }
        seeds = {name: own.seed for name, own in kept.items()}
        self._refuse_other_arguments(
            {
                "seed": typed.seed,
                "compressor": self._identity["compressor"],
                "seeds": seeds,
                "error_every": typed.error_every,
                "overlap": typed.overlap,
                # Products of matrices are rounded differently, so that replicas would drift apart.
                "codec_backend": backend_in_use(),
            }
        )

    def _refuse_other_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise ConfigError unless all workers have these."""
        refuse_other_arguments(self.maker, self._gather(arguments))

    def _gather(self, value: Any) -> list[Any]:
        """Return what each worker has, which JSON can represent."""
        transport = self._exchange.comm.transport
        if transport is None:
            return [value]

        def gather(x: Tensor) -> list[Tensor]:
            message = x.view(torch.uint8).unsqueeze(0).to(self._device)
            return [row.view(x.dtype) for row in transport.all_gather(message).cpu()]

        return gather_json(value, gather)

    def __repr__(self) -> str:
        steps, workers = max(x.exchanges for x in self._kept.values()), self._exchange.comm.workers
        return (
            f"<gcbench.{self.maker} {self.name}: {workers} workers, {steps} exchanges, "
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
        """Payload bits of this worker in exchanges that have arrived, as in `result.json`."""
        return self._exchange.meter.sent_bits[0]

    @property
    def _own_bits(self) -> int:
        """Return the bits that were sent since this was made, which need not be all steps."""
        return self.bits_sent - self._loaded_bits

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
        return (own.state for own in self._kept.values())

    def error(self) -> float:
        """Return the relative error |y - x| / |x| of the update y, as in a run's result.

        x is the mean of what workers coded: their gradients, or what a method makes of these, such
        as momenta. It is that of the last exchange in which it was measured,
        `compress(error_every=...)`; NaN before, and of updates without a scale, such as signs.
        With FSDP2 it is that of the gradients that this process owns.

        Raises:
            ConfigError: if `compress` was called without `error_every`.
        """
        return self._measured("relative")

    def cosine(self) -> float:
        """Return the cosine between the update and the mean of what was coded, see `error`."""
        return self._measured("cosine")

    def _measured(self, what: str) -> float:
        if self._error_every is None:
            raise ConfigError("no error is measured; type error_every=50 where it is made")
        return self._exchange.measured(what)

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
            "format": FORMAT,
            **self._identity,
            "name": self.name,
            "exchanges": {
                name: {"shared": shared_part(kept), "own": worker_part(kept, 0)}
                for name, kept in self._kept.items()
            },
            "meter": self._exchange.meter.state()[0],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], workers: Workers = "refuse") -> None:
        """Restore what `state_dict` returned on this worker, or gathered from all.

        States that were gathered from another number of workers are shared among these; residuals,
        which a worker has of its own, only with `workers="merge"`, which averages them.

        Raises:
            ConfigError: if it is not this worker's state, or damaged; nothing is replaced then.
        """
        self._replace(*self._read_whole(state_dict, workers))

    def _read_whole(self, saved: Any, workers: str) -> tuple[Mapping[str, Kept], Any]:
        """Return what was kept of exchanges, and this worker's state of those in `saved`.

        Raises ConfigError if it does not fit.
        """
        if workers not in get_args(Workers):
            raise ConfigError(f"workers={workers!r}: type 'refuse' or 'merge'")
        try:
            own = self._own_state(saved, workers == "merge")
            return self._read(own), own
        except StateError as error:
            raise ConfigError(f"{error}; {ADVICE}") from error

    def _own_state(self, saved: Any, merge: bool) -> Any:
        """Return this worker's state of those that were gathered from all, or `saved` itself.

        States of another number of workers are merged, if residuals need not be averaged or
        `merge`.
        """
        if not isinstance(saved, Mapping) or "processes" not in saved:
            return of_this_format(saved)
        all_states = saved["processes"] if isinstance(saved["processes"], list) else []
        all_states = [of_this_format(state) for state in all_states]
        if len(all_states) == dist.get_world_size():
            return all_states[dist.get_rank()]
        states = self._of_this_shard(all_states)
        numbers = (
            f"the saved states are of {len(all_states)} processes, and there are "
            f"{dist.get_world_size()}"
        )
        if not states:
            raise StateError(numbers)
        for worker, state in enumerate(states):
            own = {**self._identity, **self._place(worker, len(states))}
            refuse_other_identity(state, own, self.name)
            refuse_other_traffic(state)
        worker, workers = self._identity["worker"], self._identity["workers"]
        try:
            if problem := self._unmergeable(states, merge):
                if merge or self._unmergeable(states, True):
                    raise StateError(f"{numbers}, and {problem}")
                raise ConfigError(
                    f'{numbers}, and {problem}; type workers="merge" to average them, or {ADVICE}'
                )
            merged = self._merge(states, replaced_shares(worker, workers, len(states)))
        except ConfigError:
            raise
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            why = in_one_line(error)
            raise not_a_state(f"parts that do not fit together ({why})") from error
        return {**merged, **self._identity}

    def _of_this_shard(self, states: list[Any]) -> list[Any]:
        """Return the states of the workers that exchange with this one, in their order."""
        return states

    def _place(self, worker: int, workers: int) -> dict[str, int]:
        """Return the part of an identity by which workers differ."""
        return {"worker": worker, "workers": workers}

    def _unmergeable(self, states: Sequence[Mapping[str, Any]], merge: bool) -> str | None:
        """Return why these states cannot be merged, or None if they can."""
        state = states[0]
        names = {*self._identity["parameters"], *self._kept}
        for parts in by_name(state, "exchanges", self._kept).values():
            if problem := unmergeable_reason(parts["own"], state["meter"], names, merge):
                return problem
        return None

    def _merge(
        self, states: Sequence[Mapping[str, Any]], shares: Mapping[int, float]
    ) -> dict[str, Any]:
        """Return the state of a worker that replaces some of these, by their `shares`."""
        theirs, weights = [states[k] for k in shares], [*shares.values()]
        parts = [by_name(state, "exchanges", self._kept) for state in theirs]
        merged = {
            name: {
                "shared": parts[0][name]["shared"],
                "own": merge_parts([read_part(part[name]["own"]) for part in parts], weights),
            }
            for name in self._kept
        }
        meter = merge_totals([state["meter"] for state in theirs], weights)
        return {**theirs[0], "exchanges": merged, "meter": meter}

    def _replace(self, kept: Mapping[str, Kept], saved: Mapping[str, Any]) -> None:
        own_bits = self._own_bits
        self._kept = kept
        self._exchange.load_meter([saved["meter"]])
        self._loaded_bits = self.bits_sent - own_bits

    def _read(self, saved: Mapping[str, Any]) -> Mapping[str, Kept]:
        """Return what was kept of exchanges. Raises StateError if they are not these."""
        refuse_other_identity(saved, self._identity, self.name)
        refuse_other_traffic(saved)
        parts = by_name(saved, "exchanges", self._kept)
        read = {k: read_kept(kept, parts[k], self._device) for k, kept in self._kept.items()}
        return {name: self._check(name, own, saved) for name, own in read.items()}

    @abstractmethod
    def _check(self, name: str, read: Kept, saved: Mapping[str, Any]) -> Kept:
        """Return what was `read` from `saved`. Raises StateError if its state does not fit."""

    def _refuse_other_states(self, shapes: Mapping[str, Shape], states: Sequence[State]) -> None:
        """Raise StateError unless `states` are of gradients of these shapes."""
        comm = self._exchange.comm
        refuse_other_states(self.compressor, comm, shapes, states, self._device)

    @abstractmethod
    def remove(self) -> None:
        """Let the module average gradients without a compressor."""

    def _count(self, kept: Kept, values: int) -> None:
        """Count an exchange of so many values, and warn of one that sends more than they take."""
        self._fp32_bits += self._bits_of_fp32(values)
        if kept.number >= 2:  # two kinds of messages may take turns
            self._warn_if_more_than_fp32()

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


class JointCompression(Compression):
    """A compression that loads a state only if all workers load states of the same steps."""

    def load_state_dict(self, state_dict: Mapping[str, Any], workers: Workers = "refuse") -> None:
        """Restore what `state_dict` returned on this worker; all workers have to call this.

        Raises:
            ConfigError: if a worker's state is not its own, or damaged, or workers saved theirs
                after different steps; no worker replaces anything then.
        """
        try:
            read, own = self._read_whole(state_dict, workers)
        except ConfigError as error:
            self._meet([str(error), {}])
            raise
        steps = self._steps_in(own)
        for worker, (refused, other) in enumerate(self._meet(["", steps])):
            if refused:
                raise ConfigError(f"worker {worker} cannot load its state: {refused}")
            if other != steps:
                theirs, own = differing(other, steps)
                raise ConfigError(
                    f"worker {worker} loads a state with steps={theirs}, and this one with {own}; "
                    "type load_state_dict on every worker, with what it saved after the same step"
                )
        self._replace(read, own)

    def _meet(self, value: Any) -> list[Any]:
        """Return what each worker has. Raises ConfigError if some do something else."""
        try:
            return self._gather(value)
        except (RuntimeError, ValueError) as error:  # of a message that never came, or is another
            raise ConfigError(
                f"load_state_dict: not all workers called it ({in_one_line(error)}); type it on "
                "every worker"
            ) from error

    def _steps_in(self, saved: Mapping[str, Any]) -> dict[str, int]:
        """Return the numbers of steps in a state, which all workers must have in common."""
        return {k: parts["shared"]["exchanges"] for k, parts in saved["exchanges"].items()}
