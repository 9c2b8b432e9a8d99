"""Compressors in the trainers of others, each of which needs its own package only."""

from __future__ import annotations

from importlib.metadata import version

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.errors import ConfigError


def exchanging(module: object, advice: str) -> nn.Module:
    """Return the DDP or FSDP2 module that a trainer has made of a model, also a compiled one.

    Raises ConfigError, which says `advice`, if no gradients are exchanged.
    """
    module = getattr(module, "_orig_mod", module)
    if not isinstance(module, (DistributedDataParallel, FSDPModule)):
        raise ConfigError(
            f"{type(module).__name__}: no DistributedDataParallel or FSDP2 exchanges its "
            f"gradients; type {advice}"
        )
    assert isinstance(module, nn.Module)
    return module


def refuse_without(owner: type, *names: str, tested: str) -> None:
    """Raise ConfigError if a class of another package lacks a method that it had when `tested`."""
    package = owner.__module__.partition(".")[0]
    for name in names:
        if not callable(getattr(owner, name, None)):
            raise ConfigError(
                f"{package} {version(package)} has no {owner.__name__}.{name}, which gcbench "
                f"needs; type pip install {package}=={tested}"
            )
