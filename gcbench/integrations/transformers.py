"""A compressor in the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from gcbench.core.compressor import Compressor
from gcbench.core.library import compress as library
from gcbench.core.library.compression import Compression
from gcbench.integrations import exchanging, refuse_without

TESTED = "5.24.*"


def compress(trainer: Trainer, compressor: str | Compressor, **knobs: Any) -> GradientCompression:
    """Make a Trainer exchange gradients through a compressor, from `train` on.

        compression = compress(trainer, "powersgd", rank=2)  # the arguments of gcbench.compress
        trainer.train()
        print(compression.handle.ratio)

    Any subclass of Trainer works, with DDP and FSDP2, and both settings of
    `ddp_find_unused_parameters`. Each process writes its residual into the Trainer's checkpoints,
    and `train(resume_from_checkpoint=...)` restores it.
    """
    save, load = "_save_optimizer_and_scheduler", "_load_optimizer_and_scheduler"
    refuse_without(type(trainer), save, load, tested=TESTED)
    callback = GradientCompression(
        trainer, partial(library.compress, compressor=compressor, **knobs)
    )
    setattr(trainer, save, _followed(getattr(trainer, save), callback.save))
    setattr(trainer, load, _followed(getattr(trainer, load), callback.load))
    trainer.add_callback(callback)
    return callback


class GradientCompression(TrainerCallback):
    """The callback that `compress` adds to a Trainer."""

    def __init__(self, trainer: Trainer, compress: Callable[[nn.Module], Compression]) -> None:
        self.handle: Compression | None = None  # what gcbench.compress returns, from `train` on
        self._trainer, self._compress = trainer, compress
        self._module: nn.Module | None = None
        self._folder: Path | None = None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Compress what is exchanged, and restore what a checkpoint had."""
        advice = "torchrun --nproc-per-node 2 SCRIPT, on CPUs with TrainingArguments(use_cpu=True)"
        module = exchanging(self._trainer.model_wrapped, advice)
        if module is not self._module:  # a second `train` may keep it
            self.handle, self._module = self._compress(module), module
        folder, self._folder = self._folder, None
        if folder and self.handle:
            file = self._file(folder)
            if file.exists():
                self.handle.load_state_dict(torch.load(file, map_location="cpu"))
            else:
                warnings.warn(f"{file} is not there: the residual begins with zeros", stacklevel=2)

    def save(self, folder: str) -> None:
        """Write this process's state into a checkpoint."""
        if self.handle:
            Path(folder).mkdir(parents=True, exist_ok=True)  # process 0 may come later
            torch.save(self.handle.state_dict(), self._file(Path(folder)))

    def load(self, checkpoint: str | None) -> None:
        """Note from which checkpoint to restore the state when training begins."""
        self._folder = Path(checkpoint) if checkpoint else None

    def _file(self, folder: Path) -> Path:
        return folder / f"compression_{self._trainer.args.process_index}.pt"


def _followed(method: Callable[[Any], None], then: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a method of a Trainer that calls another function with its folder, too."""

    @wraps(method)
    def both(folder: Any) -> None:
        method(folder)
        then(folder)

    return both
