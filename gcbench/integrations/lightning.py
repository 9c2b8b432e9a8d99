"""A compressor as a callback of Lightning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    from pytorch_lightning import Callback, LightningModule, Trainer

from gcbench.core.compressor import Compressor
from gcbench.core.library.compress import compress
from gcbench.core.library.compression import Compression
from gcbench.integrations import exchanging


class GradientCompression(Callback):
    """The callback that compresses what DDPStrategy or ModelParallelStrategy exchanges.

        compression = GradientCompression("powersgd", rank=2)  # the arguments of gcbench.compress
        Trainer(strategy="ddp", devices=2, callbacks=[compression]).fit(model)
        print(compression.handle.ratio)

    Checkpoints hold the residuals of all processes, of which each takes its own with `ckpt_path=`.
    DDPStrategy's `ddp_comm_hook` works on GPUs only: Lightning does not register it elsewhere.
    """

    def __init__(self, compressor: str | Compressor, **knobs: Any) -> None:
        self.handle: Compression | None = None  # what gcbench.compress returns, from `fit` on
        self._compress: Callable[[nn.Module], Compression] = partial(
            compress, compressor=compressor, **knobs
        )
        self._saved: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compress what is exchanged, and restore what a checkpoint had."""
        advice = 'Trainer(strategy="ddp", devices=2), or leave out GradientCompression'
        self.handle = self._compress(exchanging(trainer.strategy.model, advice))
        if self._saved:
            self.handle.load_state_dict(self._saved)
            self._saved = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all processes in process 0, which writes checkpoints."""
        return self.handle.state_dict(gather_to=0) if self.handle else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what `state_dict` returned until training starts."""
        self._saved = state_dict
