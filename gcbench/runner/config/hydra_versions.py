"""What Hydra 1.3 and 1.4 do not do alike, each written once for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import hydra
from hydra import utils
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

IS_1_3 = hydra.__version__.startswith("1.3.")

# Hydra 1.3 warns without this argument, and 1.4 with it.
VERSION_BASE = {"version_base": "1.3"} if IS_1_3 else {}


def register_resolver(name: str, resolver: Callable[..., str | int]) -> None:
    """Let configurations call `resolver` as ${name:}; safe to call twice.

    OmegaConf 2.4 renamed this. The older one has the new name, too, for something older still.
    """
    register: Any = OmegaConf.register_new_resolver if IS_1_3 else OmegaConf.register_resolver
    register(name, resolver, replace=True)


def store(name: str, node: Any, group: str | None = None, package: str | None = None) -> None:
    """Let Hydra read `node` as a file of conf/; safe to call twice.

    A process of a launcher has what its parent stored, and Hydra 1.4 warns of storing it again.
    """
    replace: dict[str, Any] = {} if IS_1_3 else {"replace": True}
    ConfigStore.instance().store(name, node, group, package, **replace)


def trusting(targets: Sequence[str]) -> AbstractContextManager[Any]:
    """Return a context in which Hydra makes what configurations name if it is one of `targets`.

    A target that ends in .* stands for all of a package. Hydra 1.3 has no such list: in both
    versions it refuses, also in this context, what would run any code or command, as os.system.
    """
    trust: Any = getattr(utils, "execution_whitelist", None)
    return trust(targets) if trust else nullcontext()
