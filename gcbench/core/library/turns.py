"""The state of a flat gradient by parameter, as a step need not use all parameters of a group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gcbench.core.compressor import Grads, State
from gcbench.core.library.states import not_a_state, read_state, to_plain


class OtherParameters(ValueError):
    """Raised for the state of other parameters than those that a step reduces."""


@dataclass
class Turns:
    """Which parameters the state of a flat gradient belongs to, and the state of the others.

    A flat gradient `[1, shards n]` holds one row per shard, and a row the values of each parameter
    one after the other. A residual has this layout, and so does a mean, with one row.
    """

    widths: Mapping[str, int]  # values in a row, of all parameters of the group, in their order
    shards: int  # rows of a flat gradient
    used: tuple[str, ...] = ()
    resting: dict[str, State] = field(default_factory=dict)

    @staticmethod
    def of_shapes(shapes: Mapping[str, Sequence[int]], shards: int) -> Turns:
        """Return the turns of parameters of these shapes, whose rows FSDP deals out to shards."""
        return Turns(
            {k: -(-rows // shards) * math.prod(rest) for k, (rows, *rest) in shapes.items()},
            shards,
        )

    def to_plain(self) -> dict[str, Any]:
        """Return what `read` takes, for `torch.save`."""
        resting = {name: to_plain(state) for name, state in self.resting.items()}
        return {"used": list(self.used), "resting": resting}

    def read(self, saved: Any, device: torch.device) -> Turns:
        """Return saved turns of the same parameters. Raises ConfigError if they are not."""
        saved = saved if isinstance(saved, Mapping) else {}
        used, resting = saved.get("used"), saved.get("resting")
        if not isinstance(used, list) or not isinstance(resting, Mapping):
            raise not_a_state(f"turns={saved!r:.60}")
        for name in (*used, *resting):
            if name not in self.widths:
                raise not_a_state(f"turns of {name}, which this parameter group lacks")
        states = {name: read_state(state, device) for name, state in resting.items()}
        return Turns(self.widths, self.shards, tuple(used), states)

    def join_all(self, state: State) -> tuple[int, State]:
        """Return the state of all parameters that have one, and the values of their gradient.

        Raises:
            ConfigError: if it does not have one value per value of the gradient.
        """
        names = tuple(name for name in self.widths if name in {*self.used, *self.resting})
        try:
            joined = replace(self).change(state, names)
        except (OtherParameters, RuntimeError) as error:
            raise not_a_state(f"tensors of other shapes ({error})") from error
        return self.shards * sum(self.widths[name] for name in names), joined

    def change(self, state: State, used: tuple[str, ...]) -> State:
        """Return the state of a flat gradient of the parameters `used`, given that of the last.

        Raises:
            OtherParameters: if it does not consist of one value per value of the gradient.
        """
        return state if used == self.used else self.join(self.by_name(state), used)

    def by_name(self, state: State) -> dict[str, State]:
        """Return the state of each parameter, given that of the flat gradient."""
        return self.resting | self._split(state)

    def join(self, by_name: Mapping[str, State], used: tuple[str, ...]) -> State:
        """Return the state of a flat gradient of the parameters `used`, and let others rest."""
        self.resting = {name: own for name, own in by_name.items() if name not in used}
        self.used = used
        return self._join([by_name.get(name, State()) for name in used])

    def _split(self, state: State) -> dict[str, State]:
        widths = [self.widths[name] for name in self.used]
        row = sum(widths)
        by_name: dict[str, list[tuple[Grads, Grads]]] = {name: [] for name in self.used}
        for layer in state.layers():
            pairs = {name: (Grads(), Grads()) for name in self.used}
            for place, (key, x) in _tensors(layer):
                if x.shape not in ((1, row), (1, self.shards * row)):
                    raise OtherParameters(
                        "the state does not have one value per value of the gradient"
                    )
                columns = x.view(-1, row).split(widths, dim=1)
                for name, own in zip(self.used, columns, strict=True):
                    pairs[name][place][key] = own.clone()
            for name, pair in pairs.items():
                by_name[name].append(pair)
        return {name: State.of_layers(layers) for name, layers in by_name.items()}

    def _join(self, states: Sequence[State]) -> State:
        """Return the state of the flat gradient; a parameter that has none has zeros."""
        layers = [list(state.layers()) for state in states]
        joined = []
        for depth in range(max(map(len, layers), default=0)):
            at_depth = [own[depth] if depth < len(own) else State() for own in layers]
            pair = (Grads(), Grads())
            for place, (key, like) in (t for layer in at_depth for t in _tensors(layer)):
                if key not in pair[place]:
                    columns = [
                        (layer.shared, layer.per_worker)[place].get(
                            key, like.new_zeros(len(like), self.widths[name])
                        )
                        for layer, name in zip(at_depth, self.used, strict=True)
                    ]
                    pair[place][key] = torch.cat(columns, dim=1).view(1, -1)
            joined.append(pair)
        return State.of_layers(joined)


def _tensors(layer: State) -> Iterator[tuple[int, tuple[str, Tensor]]]:
    """Yield the tensors of a state by name, with 0 for shared ones and 1 for those of workers."""
    for place, part in enumerate((layer.shared, layer.per_worker)):
        for item in part.items():
            yield place, item


def reshard(
    state: State, of_all: Sequence[State], values: int, now: Turns, name: str, shard: int
) -> State:
    """Return a worker's state of a parameter, whose shards have been those of other turns.

    It has so many `values` without padding. `of_all` are the states of all workers before, each of
    which has kept its `shard` of what they have in common.
    """

    def move(x: Tensor) -> Tensor:
        padded = x.new_zeros(now.shards * now.widths[name])
        padded[:values] = x.reshape(-1)[:values]
        return padded.view(now.shards, -1)

    everyone = [[*other.layers()] for other in of_all]
    return State.of_layers(
        [
            (
                {
                    k: move(torch.cat([layers[depth].shared[k] for layers in everyone], dim=1))[
                        shard : shard + 1
                    ]
                    for k in layer.shared
                },
                {k: move(x) for k, x in layer.per_worker.items()},
            )
            for depth, layer in enumerate(state.layers())
        ]
    )
