"""Exports of a finished run: its weights, and a checkpoint from which it can be extended."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gcbench.records.files import replacing
from gcbench.train.checkpoints import CheckpointError, Checkpoints
from gcbench.train.run import Progress, Run
from gcbench.train.snapshot import shared_content, worker_content

LIMIT_BYTES = 200e6  # size up to which each is kept unless trainer.keep_weights is typed

log = logging.getLogger("gcbench")


def save_weights(run: Run, progress: Progress, checkpoints: Checkpoints, path: Path) -> None:
    """Write the model's `state_dict` to `path`, and a last checkpoint; every process calls it.

    If they cannot be written, for example to a full disk, a warning is logged instead.
    """
    asked = run.settings.keep_weights
    if asked is False:
        return
    weights = run.replica.model.state_dict()
    try:
        if asked or sum(run.control.gather(_state_bytes(run, progress))) <= LIMIT_BYTES:
            checkpoints.save(run, progress)
        if run.first and (asked or _bytes(weights) <= LIMIT_BYTES):
            with replacing(path) as file:
                torch.save({name: tensor.cpu() for name, tensor in weights.items()}, file)
    except (CheckpointError, OSError, RuntimeError) as error:  # torch wraps disk errors
        if run.first:
            log.warning("the weights of the finished run are not kept: %s", error)


def _state_bytes(run: Run, progress: Progress) -> int:
    """Return the bytes of the part of a checkpoint that this process writes."""
    workers = (worker_content(run, progress, row) for row in range(len(run.comm.local)))
    return sum(map(_bytes, workers)) + (_bytes(shared_content(run, progress)) if run.first else 0)


def _bytes(value: Any) -> int:
    """Return the bytes of all tensors in a value."""
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
