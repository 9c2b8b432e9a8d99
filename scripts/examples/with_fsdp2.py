"""FSDP2 as torchtitan does it, with gradients compressed by the three lines marked `gcbench`.

    torchrun --nproc-per-node 2 with_fsdp2.py
    torchrun --nproc-per-node 2 with_fsdp2.py checkpoints/step-4

`print(states["compression"].handle)` says how many times fewer bits a worker sent.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gcbench  # gcbench
from gcbench.integrations.checkpoint import EachRank  # gcbench

STEPS, SAVE_EVERY = 8, 4


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.output = nn.Linear(32, 64)

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Embedding, nn.Linear)):
                module.reset_parameters()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        logits: Tensor = self.output(x)
        return logits


class Training(Stateful):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def parallelize(model: Language, device: str) -> None:
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if device == "cuda" else "gloo")
torch.manual_seed(0)
with torch.device("meta"):
    model = Language()
parallelize(model, device)
model.to_empty(device=device)
model.init_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
training = Training(model, optimizer)
states: dict[str, Stateful] = {"training": training}
states["compression"] = EachRank(gcbench.compress(model, "ecqsgd", bits=4))  # gcbench
if len(sys.argv) > 1:
    dcp.load(states, checkpoint_id=sys.argv[1])

while training.step < STEPS:
    torch.manual_seed(1000 * training.step + dist.get_rank())
    tokens = torch.randint(64, (8, 33), device=device)
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    training.step += 1
    if training.step % SAVE_EVERY == 0:
        dcp.save(states, checkpoint_id=f"checkpoints/step-{training.step}")
dist.destroy_process_group()
