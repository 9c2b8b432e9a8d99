"""Parameters: their names and shapes, and those whose gradients cannot be compressed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from gcbench.core.comm.ddp import sparse_refusal
from gcbench.core.errors import ConfigError

Shape = tuple[int, ...]
FLAT_CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d)


def name_without_wrappers(name: str) -> str:
    """Return the name of a parameter or module, whether torch.compile wraps a part or not."""
    return re.sub(r"(?<![^.])_(orig_mod|checkpoint_wrapped_module)(\.|$)", "", name).removesuffix(
        "."
    )


def shapes_of_parameters(model: nn.Module, frozen: bool = False) -> dict[str, Shape]:
    """Return the shapes of a model's trained parameters by name, as compressors get them.

    Those of `frozen` ones are also returned on request.
    """
    flat_convolutions = {
        p
        for module in model.modules()
        if isinstance(module, FLAT_CONVOLUTIONS)
        for p in module.parameters()
        if p.dim() == 3
    }
    return {
        name: (*p.shape, 1) if p in flat_convolutions else tuple(p.shape)
        for name, p in model.named_parameters()
        if p.requires_grad or frozen
    }


def refuse_complex(parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for a complex parameter, of whose gradient the imaginary part would go."""
    for name, p in parameters.items():
        if p.is_complex():
            raise ConfigError(
                f"{name}: its gradients are complex, and a compressor takes real ones; type "
                "nn.Parameter(torch.view_as_real(z)) where it is made, and torch.view_as_complex "
                "where it is used"
            )


def refuse_sparse(model: nn.Module) -> None:
    """Raise ConfigError for a module whose gradients are sparse."""
    for name, part in model.named_modules():
        is_embedding = isinstance(part, (nn.Embedding, nn.EmbeddingBag))
        if is_embedding and part.sparse and part.weight.requires_grad:
            raise ConfigError(sparse_refusal(name or type(part).__name__))
