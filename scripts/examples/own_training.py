"""Your own training loop with compressed gradients: AdamW, gradient accumulation, bf16 autocast.

    torchrun --nproc-per-node 2 own_training.py            # gloo, on CPUs
    torchrun --nproc-per-node 8 own_training.py            # NCCL, if there are as many GPUs

Only two lines belong to gcbench: its import and `gcbench.compress`. The last line printed says how
many times fewer bits a worker sent.
"""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench

STEPS, MICRO_BATCHES, BATCH = 100, 2, 32


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target, device=device)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model = DistributedDataParallel(net.append(nn.Linear(256, 10)).to(device))
    compression = gcbench.compress(model, "powersgd", rank=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    torch.manual_seed(dist.get_rank())  # Each worker draws samples of its own.
    for _ in range(STEPS):
        for micro_batch in range(MICRO_BATCHES):
            chosen = torch.randint(len(images), (BATCH,), device=device)
            last = micro_batch == MICRO_BATCHES - 1
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = cross_entropy(model(images[chosen]), labels[chosen]) / MICRO_BATCHES
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = float((net(images).argmax(1) == labels).float().mean())
        print(f"accuracy {accuracy:.3f}, {compression.ratio:.1f} times fewer bits than fp32")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
