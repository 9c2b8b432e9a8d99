"""Parts of the loop, for processes that stay up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from gloo_pool import Process

from gcbench.train.drift import ReplicasDrifted, refuse_drift


def drift_said(process: Process, drifted: tuple[int, ...]) -> str | None:
    """Of a model that is another one in the processes `drifted`, each in its own way."""
    weight = torch.arange(6.0) + (1e-6 * process.rank if process.rank in drifted else 0)
    weight[0] += 1e-6 if process.rank in drifted else 0
    replica: Any = SimpleNamespace(parameters={"weight": weight})
    try:
        refuse_drift(cast(Any, SimpleNamespace(control=process.control, replica=replica)), cast(Any, SimpleNamespace(step=10)))
    except ReplicasDrifted as error:
        return str(error)
    return None
