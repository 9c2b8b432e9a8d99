"""A compressor between nodes under FSDP2, which sees this process's shard of each parameter."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gcbench.core.comm.fsdp import Part
from gcbench.core.compressor import Compressor, Grads, offsets_of
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.library.compression import Typed
from gcbench.core.library.exchange import Bucket, Kept
from gcbench.core.library.fsdp import FsdpCompression
from gcbench.core.library.states import by_name, not_a_state, read_state
from gcbench.core.library.turns import OtherParameters
from gcbench.core.parameters import FLAT_CONVOLUTIONS, Shape
from gcbench.core.wrappers.virtual import parts_of
from gcbench.core.wrappers.wrappers import NormClipping


@dataclass
class NamedKept(Kept):
    """The state of a parameter group by tensor; a step need not use all of them."""

    parts: Mapping[str, Part] = field(kw_only=True)
    used: tuple[str, ...] = ()  # in the last exchange
    is_mixed: bool = False  # whether tensors have been used in different steps

    def is_whole(self, names: Collection[str]) -> bool:
        return not self.is_mixed or super().is_whole(names)

    def places(self, flat: Tensor, used: Sequence[int]) -> Grads:
        """Return the shards `[1, ...]` of the parameters with these indices, as views of `flat`.

        Those without rows here, as there are more shards than rows, are left out.
        """
        names = [*self.parts]
        chosen = [names[i] for i in used]
        starts = accumulate((self.parts[name].values for name in chosen), initial=0)
        at = dict(zip(chosen, starts, strict=False))
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        return {
            name: flat[at[name] : at[name] + sizes[name]].view(1, *shape)
            for name, shape in self.shapes.items()
            if name in at and sizes[name]
        }

    def use(self, names: tuple[str, ...]) -> None:
        """Note which parameters are in use. Raises OtherParameters if their state is one of all."""
        if names == self.used:
            return
        for layer in self.state.layers():
            if not {*layer.shared, *layer.per_worker} <= self.shapes.keys():
                raise OtherParameters("the state is not one of each parameter")
        self.is_mixed |= bool(self.used)
        self.used = names

    def alike(self) -> list[list[str]]:
        """Return the parameters in use in groups whose states have tensors of the same kinds.

        A parameter that is new has none, and those of ACP-SGD have factors that alternate.
        """
        if not self.is_mixed:
            return [[*self.used]] if self.used else []
        groups: dict[tuple[tuple[int, int, int], ...], list[str]] = {}
        for name in self.used:
            kinds = (
                (depth, place, part[name].dim())
                for depth, layer in enumerate(self.state.layers())
                for place, part in enumerate((layer.shared, layer.per_worker))
                if name in part
            )
            groups.setdefault(tuple(kinds), []).append(name)
        return [*groups.values()]


class NamedCompression(FsdpCompression):
    """A compressor that sees the shards of a parameter group by the names of its parameters."""

    _kept: Mapping[str, NamedKept]

    def __init__(self, module: nn.Module, typed: Typed, replicas: dist.ProcessGroup) -> None:
        super().__init__(module, typed, replicas, agree=True)

    @staticmethod
    def _begin(
        seed: int, parts: Mapping[str, Part], order: Sequence[str], shards: int
    ) -> NamedKept:
        shapes = {name: _shape_of(parts[name]) for name in order}
        offsets = offsets_of({name: parts[name].shape.numel() for name in order})
        return NamedKept(seed, offsets, shapes, parts=parts)

    def _update(self, name: str, gradient: Tensor, used: Sequence[int]) -> Tensor:
        kept = self._kept[name]
        places = kept.places(gradient, used)
        kept.use(tuple(places))
        copied = [] if gradient.dtype == torch.float32 else [*places]
        rows = [gradient.view(1, -1)]
        replaced = [
            self._exchange.replace(
                kept, Bucket({k: places[k] for k in names}, [k for k in copied if k in names], rows)
            )
            for names in kept.alike()
        ]
        if replaced:
            self._exchange.keep(kept, places, replaced, rows)
        kept.exchanges += 1
        self._count(kept, sum(x.numel() for x in places.values()))
        return gradient

    def _state(self) -> dict[str, Any]:
        turns = {
            name: {"used": [*own.used], "is_mixed": own.is_mixed}
            for name, own in self._kept.items()
        }
        return {**super()._state(), "turns": turns}

    def _check(self, name: str, read: Kept, saved: Mapping[str, Any]) -> Kept:
        assert isinstance(read, NamedKept)
        turns = by_name(saved, "turns", self._kept)[name]
        try:
            used, mixed = tuple(turns["used"]), bool(turns["is_mixed"])
            # Of parameters that were not in the last exchange, as earlier states have it.
            resting = read_state(turns.get("resting", []), self._device)
        except (KeyError, TypeError) as error:
            raise not_a_state(f"turns={turns!r:.60}") from error
        for other in {*used} - read.shapes.keys():
            raise not_a_state(f"turns of {other}, which this parameter group lacks")
        state = resting.replace(read.state)
        for names in [[name] for name in read.shapes] if mixed else [[*used]]:
            own = state.select(names) if mixed else state
            if names and any(layer.shared or layer.per_worker for layer in own.layers()):
                self._refuse_other_states({name: read.shapes[name] for name in names}, [own])
        return replace(read, state=state, used=used, is_mixed=mixed)

    def _of_this_shard(self, states: list[Any]) -> list[Any]:
        own = self._identity["shard"]
        return [x for x in states if isinstance(x, Mapping) and x.get("shard") == own]


def refuse_between_nodes(compressor: Compressor) -> None:
    """Raise ConfigError for a method that needs more than this process's shards."""
    for part in parts_of(compressor):
        if isinstance(part, Hierarchical):
            raise ConfigError(
                "exchange=hierarchical: FSDP2 has averaged the gradients of a node when `replicas` "
                "exchange them; type exchange=gather"
            )
        if isinstance(part, NormClipping):
            raise ConfigError(
                f"clip_norm={part.clip_norm:g}: a process has a shard of the gradient, and not its "
                "norm; type clip_norm=null, and torch.nn.utils.clip_grad_norm_ after the backward "
                "pass"
            )


def _shape_of(part: Part) -> Shape:
    """Return the shape of a shard as compressors get it, `[out, in, width, 1]` of a Conv1d."""
    flat = isinstance(part.module, FLAT_CONVOLUTIONS) and len(part.shape) == 3
    return (*part.shape, 1) if flat else tuple(part.shape)
