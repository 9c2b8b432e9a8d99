"""The interface of compressors.

A compressor is one pure function from the workers' gradients to the update that all of them apply.

Shapes: `[w, ...]` one row per worker in this process, `[1, ...]` a value on which all workers
agree. A method never asks which rank it runs on, counts no bits, reads no clock and packs nothing
for the network: `comm` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, zip_longest
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from gcbench.codecs.noise import Noise, keys, site_number
from gcbench.comm import Comm
from gcbench.seeds import mix

Grads = dict[str, Tensor]
"""Parameter name to `[w, *shape]`, in the model's canonical order."""

Sizes = dict[str, int]
"""Parameter name to number of values."""


@dataclass(frozen=True)
class State:
    """The tensors that a method remembers, keyed by parameter name.

    Shared tensors and those of each worker lie in two dicts, as in a process of one worker their
    shapes are the same.
    """

    shared: Grads = field(default_factory=dict)  # [1, ...], equal on all workers
    per_worker: Grads = field(default_factory=dict)  # [w, ...], different on each worker
    inner: State | None = None  # of the wrapped compressor

    def layers(self) -> Iterator[State]:
        """Yield this state and those inside it, outermost first."""
        yield self
        if self.inner is not None:
            yield from self.inner.layers()

    def select(self, names: Collection[str]) -> State:
        """Return the state of these parameters only."""

        def keep(part: Grads) -> Grads:
            return {k: t for k, t in part.items() if k in names}

        return State.of_layers([(keep(shared), keep(own)) for shared, own in self._pairs()])

    def replace(self, newer: State) -> State:
        """Return this state with the parameters of `newer` as they are there."""
        nothing: tuple[Grads, Grads] = ({}, {})
        pairs = zip_longest(self._pairs(), newer._pairs(), fillvalue=nothing)
        return State.of_layers([(a | c, b | d) for (a, b), (c, d) in pairs])

    def _pairs(self) -> list[tuple[Grads, Grads]]:
        return [(layer.shared, layer.per_worker) for layer in self.layers()]

    @staticmethod
    def of_layers(layers: Sequence[tuple[Grads, Grads]]) -> State:
        """Return the state of these pairs (shared, per worker): the inverse of `layers`."""
        state: State | None = None
        for shared, per_worker in reversed(layers):
            state = State(shared, per_worker, state)
        return state or State()


class Aggregated(NamedTuple):
    """One step's result: the update that all workers apply, and what belongs to it.

    `update` is `[1, ...]`. `sent()`, computed only when a wrapper asks, is what error feedback
    subtracts: `[w, ...]`, or `[1, ...]` where it is the update. `shannon_bits()` `[w]` is the least
    that an entropy code of the gathered codes would cost; None where no codes were gathered. Both
    may read the gradients, and are called before these change.
    """

    update: Grads
    sent: Callable[[], Grads]
    state: State
    shannon_bits: Callable[[], Tensor] | None = None


def merge(parts: Sequence[Aggregated], like: Grads) -> Aggregated:
    """Return the aggregates of disjoint groups of tensors as one, in the order of `like`."""
    state = parts[0].state
    for part in parts[1:]:
        state = state.replace(part.state)
    bounds = [part.shannon_bits for part in parts if part.shannon_bits is not None]
    return Aggregated(
        _join([part.update for part in parts], like),
        lambda: _join([part.sent() for part in parts], like),
        state,
        (lambda: sum((bound() for bound in bounds), start=torch.zeros(())))
        if len(bounds) == len(parts)
        else None,
    )


def _join(parts: Sequence[Grads], like: Grads) -> Grads:
    whole = {name: tensor for part in parts for name, tensor in part.items()}
    refuse_other_tensors(whole, like)
    return {name: whole[name] for name in like}


def aggregate_parts(
    parts: Iterable[tuple[Compressor, Grads]], like: Grads, state: State, comm: Comm, step: Step
) -> Aggregated:
    """Return the aggregate of disjoint groups of tensors, each by a compressor of its own.

    Every group travels in messages of its own.
    """
    return merge(
        [method.aggregate(part, state.select(part), comm, step) for method, part in parts if part],
        like,
    )


class MethodError(ValueError):
    """Raised where a method does not return what it owes."""


def refuse_other_tensors(returned: Grads, grads: Grads) -> None:
    """Raise MethodError unless a method `returned` the tensors of `grads` and no others."""
    if returned.keys() == grads.keys():
        return
    wrong = [f"no tensor for {name}" for name in grads if name not in returned]
    wrong += [
        f"a tensor for {name}, which is no gradient" for name in returned if name not in grads
    ]
    raise MethodError(
        f"the compressor returned {wrong[0]}; "
        "type gcbench check and its name to see what a method owes"
    )


class Properties(NamedTuple):
    """A method's promises, which `gcbench check` tests."""

    exact: bool = False  # the update is the mean of the gradients, up to rounding of the sum
    unbiased: bool = False  # E[update] is the mean of the gradients
    contractive: bool = False  # E|v - C(v)|^2 < |v|^2 for every v: safe under plain error feedback
    mean_linear: bool = False  # rows and their mean give the same update
    divisible: bool = False  # any part of a gradient, flat, can be sent by itself, as in a shard
    scope: Literal["tensor", "global"] = "tensor"  # global: a scale, bucket or draw spans tensors
    turns: int = 1  # kinds of messages that take turns, as P and Q of ACP-SGD do


@runtime_checkable
class Compressor(Protocol):
    """A method that turns all workers' gradients into the update that all of them apply."""

    @property
    def properties(self) -> Properties: ...

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        """Return what all workers apply, from float32 gradients of any shape, which stay as they
        are.

        Compressors that `build` puts together refuse other types of values by name, and pass by
        parameters that hold none.
        """


@runtime_checkable
class Correcting(Compressor, Protocol):
    """A compressor that adds the error-feedback residual itself, to pass over memory less often."""

    def aggregate_corrected(
        self, grads: Grads, residual: Grads, alpha: float, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        """Return the aggregate of corrected = grads + alpha residual, and corrected - sent."""


@dataclass(frozen=True)
class Step:
    """The place of an exchange in a run, of which its randomness is a function."""

    number: int  # exchanges of the same tensors before this one; without local steps, the steps
    seed: int
    workers: range  # the workers of this process's rows
    offsets: Mapping[str, int]  # first element of each parameter in canonical order

    def noise(self, site: str, sizes: Sizes, device: torch.device, shared: bool = False) -> Noise:
        """Return draws for `sizes[name]` elements of each parameter, laid end to end.

        `shared` draws are the same on all workers.
        """
        base = (self.seed, site_number(site), self.number)
        per_row = [mix(*base)] if shared else [mix(*base, 1 + worker) for worker in self.workers]
        runs = tuple((self.offsets[name], n) for name, n in sizes.items())
        return Noise(keys(per_row, device), _canonical_index(runs, device))

    def worker_noise(self, site: str, n: int, device: torch.device) -> Noise:
        """Return draws for n values of a worker rather than of parameters, such as its shard."""
        per_row = [
            mix(self.seed, site_number(site), self.number, 1 + worker) for worker in self.workers
        ]
        return Noise(keys(per_row, device), _canonical_index(((0, n),), device))


@lru_cache(maxsize=64)
def _canonical_index(runs: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(start, start + n, dtype=torch.int32) for start, n in runs]).to(
        device
    )


def sizes_of(grads: Grads) -> Sizes:
    """Return the number of values of each tensor, in one row."""
    return {name: g.numel() // g.shape[0] for name, g in grads.items()}


def offsets_of(sizes: Sizes) -> dict[str, int]:
    """Return the place of each tensor's first value where all tensors lie end to end."""
    return dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))


def add_scaled(tensors: Grads, others: Grads, alpha: float = 1) -> Grads:
    """Return x + alpha y of all tensors; a GPU adds them up in one kernel."""
    others_in_order = [others[name] for name in tensors]
    sums = torch._foreach_add(list(tensors.values()), others_in_order, alpha=alpha)
    return dict(zip(tensors, sums, strict=True))


def flatten_each(grads: Grads) -> list[Tensor]:
    """Return every tensor as `[w, values]`."""
    return [g.flatten(1) if g.dim() > 1 else g.unsqueeze(1) for g in grads.values()]


def flatten(grads: Grads) -> Tensor:
    """Return all tensors end to end, `[w, n]`."""
    return torch.cat(flatten_each(grads), dim=1)


def flatten_sum(tensors: Grads, others: Grads, alpha: float = 1) -> Tensor:
    """Return x + alpha y of all tensors end to end, `[w, n]`; a CPU passes over them once."""
    first = next(iter(tensors.values()))
    if first.device.type != "cpu":
        return flatten(add_scaled(tensors, others, alpha))
    flat = first.new_empty(len(first), sum(sizes_of(tensors).values()))
    for name, part in unflatten(flat, tensors).items():
        torch.add(tensors[name], others[name], alpha=alpha, out=part)
    return flat


def unflatten(x: Tensor, like: Grads) -> Grads:
    """Return the tensors of `[r, n]` as views, shaped as those of `like`: inverts `flatten`."""
    return split_rows(x, {k: g.shape[1:] for k, g in like.items()})


def split_rows(x: Tensor, shapes: Mapping[str, Sequence[int]]) -> Grads:
    """Return the tensors `[r, *shape]` that lie end to end in the rows of `[r, n]`, as views."""
    parts = x.split([math.prod(shape) for shape in shapes.values()], dim=1)
    return {
        k: part.view(len(x), *shape) for (k, shape), part in zip(shapes.items(), parts, strict=True)
    }
