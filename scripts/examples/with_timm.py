"""A loop as timm's train.py, with gradients compressed by the two lines marked `gcbench`.

    torchrun --nproc-per-node 2 with_timm.py
    torchrun --nproc-per-node 2 with_timm.py checkpoints/checkpoint-1.pth.tar

Four more lines, marked `residual`, save what each process has not sent beside timm's checkpoint,
which is that of process 0. `print(compression)` says how many times fewer bits a worker sent.
"""

from __future__ import annotations

import sys
from argparse import Namespace

import torch
from timm import create_model, utils
from timm.models import resume_checkpoint
from timm.optim import create_optimizer_v2
from torch import nn
from torch.nn.parallel import DistributedDataParallel as NativeDDP

import gcbench  # gcbench

args = Namespace(model="test_resnet", epochs=4, steps=2, output="checkpoints", device="cpu")
args.device = "cuda" if torch.cuda.is_available() else "cpu"
args.resume = sys.argv[1] if len(sys.argv) > 1 else ""
device = utils.init_distributed_device(args)
utils.random_seed(42)

model = create_model(args.model, num_classes=10).to(device, memory_format=torch.channels_last)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
start_epoch = 0
if args.resume:
    start_epoch = resume_checkpoint(model, args.resume, optimizer) or 0
model_ema = utils.ModelEmaV3(model, decay=0.9)
model = NativeDDP(model, device_ids=[device] if device.type == "cuda" else None)
compression = gcbench.compress(model, "powersgd", rank=2)  # gcbench
if args.resume:  # residual
    compression.load_state_dict(torch.load(f"{args.resume}.{args.rank}"))  # residual
saver = None
if utils.is_primary(args):
    folder = utils.get_outdir(args.output)
    saver = utils.CheckpointSaver(model, optimizer, args, model_ema, checkpoint_dir=folder)

for epoch in range(start_epoch, args.epochs):
    model.train()
    utils.random_seed(epoch, args.rank)
    for _ in range(args.steps):
        inputs = torch.randn(8, 3, 64, 64, device=device).to(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, 0, 0, :10].argmax(1))
        loss.backward()
        utils.dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model_ema.update(model)
    utils.distribute_bn(model, args.world_size, reduce=True)
    if saver is not None:
        saver.save_checkpoint(epoch)
    name = f"{args.output}/checkpoint-{epoch}.pth.tar.{args.rank}"  # residual
    torch.save(compression.state_dict(), name)  # residual
torch.distributed.destroy_process_group()
