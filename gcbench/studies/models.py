"""Models as lists of shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gcbench.config import compose_words, resolve
from gcbench.launch.instantiate import make


def shapes_of(
    words: Sequence[str], image: tuple[int, int, int], outputs: int
) -> dict[str, torch.Size]:
    """Of the model that these words choose, such as model=resnet18; no weights are made."""
    node = resolve(compose_words(words))["model"]
    with torch.device("meta"):
        model = make({**node, "shape": list(image), "outputs": outputs}, "model")
    return {name: p.shape for name, p in model.named_parameters()}
