"""A loop of accelerate whose gradients are compressed by the three lines marked `gcbench`.

    accelerate launch --num_processes 2 with_accelerate.py     # on CPUs: --cpu
    accelerate launch --num_processes 2 with_accelerate.py checkpoints/step_4

`print(accelerator.ddp_handler.handles)` says how many times fewer bits a worker sends.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gcbench.integrations.accelerate import CompressionKwargs  # gcbench

STEPS, MICRO_BATCHES, SAVE_EVERY = 8, 2, 4
checkpoint = sys.argv[1] if len(sys.argv) > 1 else None

accelerator = Accelerator(
    gradient_accumulation_steps=MICRO_BATCHES,
    cpu=not torch.cuda.is_available(),
    kwargs_handlers=[CompressionKwargs("powersgd", rank=2)],  # gcbench
)
accelerator.register_for_checkpointing(accelerator.ddp_handler)  # gcbench

torch.manual_seed(0)
images, labels = torch.randn(512, 64), torch.randint(10, (512,))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
batches = DataLoader(TensorDataset(images, labels), batch_size=16)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

step = 0
if checkpoint:
    accelerator.load_state(checkpoint)
    step = int(checkpoint.rpartition("_")[2])
for inputs, targets in accelerator.skip_first_batches(batches, step * MICRO_BATCHES):
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        step += 1
        if step % SAVE_EVERY == 0:
            accelerator.save_state(f"checkpoints/step_{step}")
    if step == STEPS:
        break
accelerator.print(f"step {step}, loss {loss:.3f}")
