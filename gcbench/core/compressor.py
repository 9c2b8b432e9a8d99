"""The interface of compressors.

A compressor is a pure function from all workers' gradients to the update that every worker applies.

Shapes: `[w, ...]` has one row per worker in this process, `[1, ...]` is a value on which all
workers agree. A method does not ask for its rank, count bits, read a clock or pack messages for the
network: `comm` does all of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import accumulate, zip_longest
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from gcbench.core.codecs.buckets import whole_of
from gcbench.core.codecs.noise import Noise, join_runs, keys
from gcbench.core.comm.collectives import Comm

Grads = dict[str, Tensor]
"""Parameter name to `[w, *shape]`, in the model's canonical order.

A shape of three dimensions is a stack of matrices; see `gcbench.core.methods.matrices`.
"""

Sizes = dict[str, int]
"""Parameter name to number of values."""


@dataclass(frozen=True)
class State:
    """The tensors that a method remembers, keyed by parameter name.

    Shared and per-worker tensors are kept in separate dicts, because in a process with one worker
    their shapes are the same.
    """

    shared: Grads = field(default_factory=dict)  # [1, ...], identical on all workers
    per_worker: Grads = field(default_factory=dict)  # [w, ...], different on each worker
    inner: State | None = None  # the state of the wrapped compressor

    def layers(self) -> Iterator[State]:
        """Yield this state and the states nested in it, outermost first."""
        yield self
        if self.inner is not None:
            yield from self.inner.layers()

    def select(self, names: Collection[str]) -> State:
        """Return the state of these parameters only, in their order."""

        def keep(part: Grads) -> Grads:
            return {k: part[k] for k in names if k in part}

        return State.of_layers([(keep(shared), keep(own)) for shared, own in self._pairs()])

    def replace(self, newer: State) -> State:
        """Return this state, with the tensors in `newer` added or replaced."""
        nothing: tuple[Grads, Grads] = ({}, {})
        pairs = zip_longest(self._pairs(), newer._pairs(), fillvalue=nothing)
        return State.of_layers([(a | c, b | d) for (a, b), (c, d) in pairs])

    def _pairs(self) -> list[tuple[Grads, Grads]]:
        return [(layer.shared, layer.per_worker) for layer in self.layers()]

    @staticmethod
    def of_layers(layers: Sequence[tuple[Grads, Grads]]) -> State:
        """Return nested states from (shared, per-worker) pairs, outermost first."""
        state: State | None = None
        for shared, per_worker in reversed(layers):
            state = State(shared, per_worker, state)
        return state or State()


class Goal(NamedTuple):
    """The values that workers were to code, and what all got for their mean, in one unit."""

    wanted: Grads  # [w, ...]
    got: Grads  # [1, ...]


def vnmse(got: Tensor, wanted: Tensor) -> Tensor:
    """Return `|got - wanted|^2 / |wanted|^2` of every row of `[w, n]`, in 2-norms, as `[w]`."""
    exact = wanted.double()
    return (got.double() - exact).square().sum(1) / exact.square().sum(1)


class Aggregated(NamedTuple):
    """The result of one step: the update that all workers apply, the new state, and what was sent.

    `update` is `[1, ...]`. `sent()`, computed only on demand, is what error feedback subtracts:
    `[w, ...]`, or `[1, ...]` if it is the update. `shannon_bits()` is the lowest number of bits
    `[w]` that an entropy code of the gathered codes could take; it is None if no codes were
    gathered. `goal()` is what the error of compression is measured by, such as clipped gradients or
    momenta; None: the gradients and the update, also with a residual, which makes up for what they
    lost before. All three may read the gradients, so they must be called before these change.
    """

    update: Grads
    sent: Callable[[], Grads]
    state: State
    shannon_bits: Callable[[], Tensor] | None = None
    goal: Callable[[], Goal] | None = None

    def goal_of(self, grads: Grads) -> Callable[[], Goal]:
        """Return the goal of a method that got these gradients; it keeps nothing else in memory."""
        return self.goal or partial(Goal, grads, self.update)

    def mapped(self, change: Callable[[Grads], Grads]) -> Aggregated:
        """Return this result of tensors that a wrapper made as one of its own, but for the state.

        `change` turns values of the former into those of the latter.
        """
        goal = self.goal
        return self._replace(
            update=change(self.update),
            sent=lambda: change(self.sent()),
            goal=goal and (lambda: Goal(*map(change, goal()))),
        )

    def with_goal_of(self, grads: Grads) -> Aggregated:
        """Return this result of a wrapped method as that of a wrapper that passed `grads` on."""
        return self._replace(goal=self.goal_of(grads))


def merge(parts: Sequence[Aggregated], like: Grads) -> Aggregated:
    """Return the aggregates of disjoint groups of tensors as one, in the order of `like`.

    Raises MethodError unless the groups together have exactly the tensors of `like`.
    """
    state = reduce(State.replace, [part.state for part in parts])
    bounds = [part.shannon_bits for part in parts if part.shannon_bits is not None]
    update = _join([part.update for part in parts], like)
    goals = [part.goal_of({name: like[name] for name in part.update}) for part in parts]
    return Aggregated(
        update,
        lambda: _join([part.sent() for part in parts], like),
        state,
        (lambda: sum((bound() for bound in bounds), start=torch.zeros((), dtype=torch.float32)))
        if len(bounds) == len(parts)
        else None,
        (lambda: Goal(*(_join(side, like) for side in zip(*(g() for g in goals), strict=True))))
        if any(part.goal for part in parts)
        else None,
    )


def _join(parts: Sequence[Grads], like: Grads) -> Grads:
    whole = {name: tensor for part in parts for name, tensor in part.items()}
    refuse_other_tensors(whole, like)
    return {name: whole[name] for name in like}


def aggregate_parts(
    parts: Iterable[tuple[Compressor, Grads]], like: Grads, state: State, comm: Comm, step: Step
) -> Aggregated:
    """Return the aggregate of disjoint groups of tensors, each with its own compressor.

    Each group is sent in separate messages.
    """
    return merge(
        [method.aggregate(part, state.select(part), comm, step) for method, part in parts if part],
        like,
    )


class MethodError(ValueError):
    """Raised when an update lacks tensors, or has some with unknown names or wrong shapes."""


def refuse_other_tensors(returned: Grads, grads: Grads) -> None:
    """Raise MethodError unless a method `returned` exactly the tensors of `grads`."""
    if returned.keys() == grads.keys():
        return
    wrong = [f"no tensor for {name}" for name in grads if name not in returned]
    wrong += [
        f"a tensor for {name}, which has no gradient" for name in returned if name not in grads
    ]
    raise MethodError(
        f"the compressor returned {wrong[0]}; "
        "type gcbench check and its name to see what a method must return"
    )


def refuse_other_update(update: Grads, grads: Grads) -> None:
    """Raise MethodError unless `update` has one row in the shape of each tensor of `grads`."""
    refuse_other_tensors(update, grads)
    for name, g in grads.items():
        if update[name].shape[1:] != g.shape[1:] or update[name].shape[0] != 1:
            raise MethodError(
                f"the compressor returned an update of {name} with the shape "
                f"{tuple(update[name].shape)}, not {(1, *g.shape[1:])}; type gcbench check and "
                "its name to see what a method must return"
            )


class Properties(NamedTuple):
    """A method's promises, which `gcbench check` tests."""

    exact: bool = False  # the update is the mean of the gradients, up to rounding of the sum
    unbiased: bool = False  # E[update] is the mean of the gradients
    # E|v - C(v)|^2 < |v|^2 for every v, or max|v - C(v)| < max|v|: safe under plain error feedback.
    contractive: bool = False
    mean_linear: bool = False  # the rows give the same update as their mean
    divisible: bool = False  # any part of a flattened gradient can be sent alone, e.g. a shard
    scope: Literal["tensor", "global"] = "tensor"  # global: a scale, bucket or draw spans tensors
    direction: bool = False  # the update, e.g. signs, is the same for larger gradients: no scale
    turns: int = 1  # kinds of messages that alternate between steps: P and Q of ACP-SGD are 2


@runtime_checkable
class Compressor(Protocol):
    """A method that turns all workers' gradients into the update that all of them apply."""

    @property
    def properties(self) -> Properties: ...

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        """Return the update for float32 gradients of any shape, which are not modified.

        Compressors made by `build` raise TypeError for another dtype, and do not pass empty
        parameters on to the method.
        """


class Given(NamedTuple):
    """Gradients and a residual of error feedback that is still to be added.

    What is compressed is grads + alpha residual; the next residual is that minus what is sent, plus
    keep residual.
    """

    grads: Grads
    residual: Grads
    alpha: float = 1
    keep: float = 0
    clip: float = 0  # what is compressed is, to so many deviations of its tensor; 0: it is not
    in_place: bool = False  # whether the residual is given up, so that it may be overwritten

    def added(self) -> Grads:
        """Return what is compressed, for a method that has no use for its parts."""
        return add_scaled(self.grads, self.residual, self.alpha)

    def left_by(self, rest: Grads) -> Grads:
        """Return the next residual, where `rest` was not sent."""
        return add_scaled(rest, self.residual, self.keep) if self.keep else rest

    @property
    def tensors(self) -> list[Tensor]:
        """Return the gradients as `[w, values]` each."""
        return flatten_each(self.grads)

    @property
    def before(self) -> list[Tensor]:
        """Return the residual as `[w, values]` each, in the order of the gradients."""
        return flatten_each({k: self.residual[k] for k in self.grads})

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(sizes_of(self.grads).values())

    def room(self) -> list[Tensor]:
        """Return where the next residual goes, `[w, values]` each: where it lies, if it may."""
        if self.in_place:
            return self.before
        first = next(iter(self.grads.values()))
        return list(first.new_empty(len(first), sum(self.segments)).split(self.segments, dim=1))

    def named(self, parts: Sequence[Tensor]) -> Grads:
        """Return tensors `[w, values]` with the names and shapes of the gradients."""
        named = zip(self.grads.items(), parts, strict=True)
        return {k: x.view_as(g) for (k, g), x in named}

    def flat_room(self) -> Tensor:
        """Return room for what is compressed, `[w, n]`: where the residual lies, if it may."""
        whole = whole_of(self.before) if self.in_place and not self.keep else None
        first = next(iter(self.grads.values()))
        return first.new_empty(len(first), sum(self.segments)) if whole is None else whole

    def flat(self) -> Tensor:
        """Return what is compressed in its room; a CPU reads it only once."""
        flat, tensors, before = self.flat_room(), self.tensors, self.before
        memory, old = (x.untyped_storage()._cdata for x in (flat, before[0]))
        lies_there = memory == old
        parts = before if lies_there else list(flat.split(self.segments, dim=1))
        if flat.device.type == "cpu":
            for x, y, part in zip(tensors, before, parts, strict=True):
                torch.add(x, y, alpha=self.alpha, out=part)
        elif lies_there and self.alpha == 1:
            torch._foreach_add_(parts, tensors)
        else:
            torch._foreach_copy_(parts, torch._foreach_add(tensors, before, alpha=self.alpha))
        return flat

    def left_in(self, x: Tensor) -> Grads:
        """Return the next residual, where the values of `x` `[w, n]` were not sent."""
        left = list(x.split(self.segments, dim=1))
        if self.keep:
            before = self.before
            torch._foreach_add_(left, before, alpha=self.keep)
            if self.in_place:
                torch._foreach_copy_(before, left)
                left = before
        return self.named(left)


@runtime_checkable
class Correcting(Compressor, Protocol):
    """A compressor that adds the error-feedback residual itself, which saves passes over memory."""

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        """Return the aggregate of `given.added()`, and the next residual."""


@dataclass(frozen=True)
class Step:
    """The position of an exchange in a run, which determines its random draws."""

    # How many exchanges of the same tensors came before; without local steps, how many steps.
    number: int
    seed: int
    workers: range  # the workers to which this process's rows belong
    offsets: Mapping[str, int]  # index of each parameter's first value, in canonical order
    in_place: bool = False  # whether the state is given up, so that its tensors may be overwritten

    def noise(self, site: str, sizes: Sizes, device: torch.device, shared: bool = False) -> Noise:
        """Return random draws for `sizes[name]` values of each parameter, concatenated.

        `shared` draws are the same on all workers.
        """
        of_rows = keys(self.seed, site, self.number, None if shared else self.workers, device)
        return Noise(of_rows, join_runs((self.offsets[name], n) for name, n in sizes.items()))

    def worker_noise(self, site: str, n: int, device: torch.device) -> Noise:
        """Return random draws for n values that belong to a worker, such as those of its shard."""
        return replace(self, offsets={"values": 0}).noise(site, {"values": n}, device)


def sizes_of(grads: Grads) -> Sizes:
    """Return the number of values that each tensor has in one row."""
    return {name: g.numel() // g.shape[0] for name, g in grads.items()}


def offsets_of(sizes: Sizes) -> dict[str, int]:
    """Return the index of each tensor's first value in the concatenated tensors."""
    return dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))


def add_scaled(tensors: Grads, others: Grads, alpha: float = 1, in_place: bool = False) -> Grads:
    """Return x + alpha y for all tensors, with a single kernel on a GPU; `in_place`: as x."""
    others_in_order = [others[name] for name in tensors]
    if in_place:
        torch._foreach_add_(list(tensors.values()), others_in_order, alpha=alpha)
        return tensors
    sums = torch._foreach_add(list(tensors.values()), others_in_order, alpha=alpha)
    return dict(zip(tensors, sums, strict=True))


def zeros_of(grads: Grads) -> Grads:
    """Return zeros in the shapes of `grads`, as the parts of one tensor."""
    first, sizes = next(iter(grads.values())), sizes_of(grads)
    return unflatten(first.new_zeros(len(first), sum(sizes.values())), grads)


def cast_each(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return each tensor in another type, with a single kernel on a GPU."""
    whole = torch.empty(sum(map(Tensor.numel, tensors)), dtype=dtype, device=tensors[0].device)
    parts = whole.split([x.numel() for x in tensors])
    cast = [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(cast, list(tensors))
    return cast


def flatten_each(grads: Grads) -> list[Tensor]:
    """Return each tensor reshaped to `[w, values]`."""
    return [g.flatten(1) if g.dim() > 1 else g.unsqueeze(1) for g in grads.values()]


def flatten(grads: Grads) -> Tensor:
    """Return all tensors flattened and concatenated, `[w, n]`."""
    return torch.cat(flatten_each(grads), dim=1)


def view_flat(grads: Grads) -> Tensor:
    """Return `flatten(grads)` to be read only: no copy, if the tensors lie in a row."""
    parts = flatten_each(grads)
    whole = whole_of(parts)
    return torch.cat(parts, dim=1) if whole is None else whole


def unflatten(x: Tensor, like: Grads) -> Grads:
    """Return views of `[r, n]` with the names and shapes of `like`: the inverse of `flatten`."""
    return split_rows(x, {k: g.shape[1:] for k, g in like.items()})


def split_rows(x: Tensor, shapes: Mapping[str, Sequence[int]]) -> Grads:
    """Return views of the tensors `[r, *shape]` that are concatenated in the rows of `[r, n]`."""
    parts, rows = x.split([math.prod(shape) for shape in shapes.values()], dim=1), len(x)
    named = zip(shapes.items(), parts, strict=True)
    return {k: part.view(rows, *shape) for (k, shape), part in named}
