"""Exports of a finished run: its weights, and a checkpoint from which it can be extended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from gcbench.runner.records.files import replacing
from gcbench.runner.records.gradients import write_tensors
from gcbench.runner.train.checkpoints import Checkpoints
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.snapshot import shared_content, worker_content
from gcbench.runner.train.writing import CheckpointError, write_in_all

LIMIT_BYTES = 200e6  # size up to which each is kept unless trainer.keep_weights is typed


def save_weights(run: Run, progress: Progress, checkpoints: Checkpoints, path: Path) -> str | None:
    """Write the model's `state_dict` to `path`, and a last checkpoint; every process calls it.

    If they cannot be written, for example to a full disk, all return why. Such a run has failed:
    when it is started again, it continues from its last checkpoint, and keeps both.
    """
    asked = run.settings.keep_weights
    if asked is False:
        return None
    weights = run.replica.model.state_dict()

    def write() -> None:
        with replacing(path) as file:
            write_tensors({name: tensor.cpu() for name, tensor in weights.items()}, file)

    try:
        if asked or sum(run.control.gather(_state_bytes(run, progress))) <= LIMIT_BYTES:
            checkpoints.save(run, progress)
        if asked or _bytes(weights) <= LIMIT_BYTES:
            write_in_all(run, path, checkpoints.latest(), write if run.first else lambda: None)
    except CheckpointError as error:
        return f"{error}, or add trainer.keep_weights=false"
    return None


def _state_bytes(run: Run, progress: Progress) -> int:
    """Return the bytes of the part of a checkpoint that this process writes."""
    workers = (worker_content(run, progress, row) for row in range(len(run.comm.local)))
    return sum(map(_bytes, workers)) + (_bytes(shared_content(run, progress)) if run.first else 0)


def _bytes(value: Any) -> int:
    """Return the bytes of all tensors in a value."""
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
