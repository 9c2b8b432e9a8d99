"""Fragments of a model, which local steps exchange one at a time."""

from __future__ import annotations

from typing import Literal

from gcbench.core.compressor import Sizes, offsets_of

Pattern = Literal["sequential", "strided"]


def cut_fragments(sizes: Sizes, count: int, pattern: Pattern = "sequential") -> list[list[str]]:
    """Return the names in `count` groups: of about equally many values, or of layers in turn.

    No group is empty.
    """
    names = list(sizes)
    if pattern == "strided":
        layers = list(dict.fromkeys(map(layer_of, names)))
        return [[n for n in names if layers.index(layer_of(n)) % count == k] for k in range(count)]
    offsets, values = offsets_of(sizes), sum(sizes.values())
    starts = [0]
    for k in range(1, count):
        possible = range(starts[-1] + 1, len(names) - (count - k) + 1)
        starts.append(min(possible, key=lambda i: abs(count * offsets[names[i]] - k * values)))
    return [names[i:j] for i, j in zip(starts, [*starts[1:], len(names)], strict=True)]


def layer_of(name: str) -> str:
    """Return the layer of a parameter: its name up to the first number, or else its module's."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: number + 1])
