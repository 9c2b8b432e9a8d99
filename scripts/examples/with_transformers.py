"""A Trainer of transformers whose gradients are compressed by the two lines marked `gcbench`.

    torchrun --nproc-per-node 2 with_transformers.py
    torchrun --nproc-per-node 2 with_transformers.py checkpoints/checkpoint-4

`print(compression.handle)` says how many times fewer bits a worker sent.
"""

from __future__ import annotations

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from gcbench.integrations.transformers import compress  # gcbench

checkpoint = sys.argv[1] if len(sys.argv) > 1 else None

set_seed(0)
config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config)
texts = torch.randint(64, (256, 32))
trainer = Trainer(
    model,
    TrainingArguments(
        "checkpoints",
        max_steps=8,
        save_steps=4,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=[{"input_ids": text, "labels": text} for text in texts],
)
compression = compress(trainer, "powersgd", rank=2)  # gcbench
trainer.train(resume_from_checkpoint=checkpoint)
