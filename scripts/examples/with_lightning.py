"""A Trainer of Lightning whose gradients are compressed by the two lines marked `gcbench`.

    python with_lightning.py                                  # Lightning starts the processes
    python with_lightning.py checkpoints/epoch=0-step=4.ckpt

`print(trainer.callbacks[0].handle)` says how many times fewer bits a worker sent.
"""

from __future__ import annotations

import sys

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gcbench.integrations.lightning import GradientCompression  # gcbench

checkpoint = sys.argv[1] if len(sys.argv) > 1 else None


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


seed_everything(0)
images, labels = torch.randn(256, 64), torch.randint(10, (256,))
model = Classifier()
trainer = Trainer(
    strategy="ddp",
    devices=2,
    max_epochs=2,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[
        GradientCompression("powersgd", rank=2),  # gcbench
        ModelCheckpoint("checkpoints", save_top_k=-1),
    ],
)
batches = DataLoader(TensorDataset(images, labels), batch_size=16)
trainer.fit(model, batches, ckpt_path=checkpoint)
