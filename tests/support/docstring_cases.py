"""Examples in docstrings, run in processes with the names that a reader's script would have."""

from __future__ import annotations

import inspect
import os
import re
from itertools import islice
from textwrap import dedent
from typing import Any

import torch
from gloo_pool import Process
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.methods.qsgd import QSGD

# A run of the examples is short.
SHORT = '"trainer.max_steps=2", "trainer.launcher=virtual", "logger=none", '


def example_of(name: str) -> str | None:
    """Return the first example in the docstring of a public name."""
    told = inspect.getdoc(getattr(gcbench, name)) or ""
    found = re.search(r"\n\n((?:    .*(?:\n|$))+)", told.partition("\nArgs:")[0])
    return dedent(found[1]) if found else None


def run_example(process: Process, name: str, folder: str) -> list[str]:
    """Run the example of a public name; return the names that it made."""
    torch.manual_seed(process.rank)
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    sharded = name == "compress_weights"
    ddp = None if sharded else DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    loader = [(torch.randn(8, 64), torch.randint(4, (8,))) for _ in range(20)]
    loss_function = nn.CrossEntropyLoss()

    def step(trained: Any) -> None:
        for inputs, targets in loader[:2]:
            optimizer.zero_grad()
            loss_function(trained(inputs), targets).backward()
            optimizer.step()

    def strategy(ddp_comm_state: Any, ddp_comm_hook: Any) -> None:
        assert ddp is not None
        ddp.register_comm_hook(ddp_comm_state, ddp_comm_hook)

    names: dict[str, Any] = {
        "gcbench": gcbench,
        "DistributedDataParallel": DistributedDataParallel,
        "DDPStrategy": strategy,
        "fully_shard": fully_shard,
        "islice": islice,
        "QSGD": QSGD,
        "model": plain,
        "ddp": ddp,
        "optimizer": optimizer,
        "loader": loader,
        "batches": loader,
        "loss_function": loss_function,
        "evaluate": lambda trained: trained(loader[0][0]),
        "buffer": torch.randn(1000),
        "out": torch.zeros(1000),
        "rank": process.rank,
        "step": 0,
        "sender": 0,
        "train": step,
    }
    text = str(example_of(name))
    text = text.replace('"compressor=qsgd"', f'{SHORT}"compressor=qsgd"')
    text = text.replace('"outputs"', repr(folder)).replace(
        '"model=resnet20", "dataset=cifar10", ', ""
    )
    inside = {"compress": "train(model)", "profile": "train_one(inputs, targets)"}.get(name, "...")
    inside = "train(ddp)" if name == "comm_hook" else inside

    def train_one(inputs: Any, targets: Any) -> None:
        optimizer.zero_grad()
        loss_function(names["ddp"](inputs), targets).backward()
        optimizer.step()

    names["train_one"] = train_one
    text = re.sub(r"^(\s*)\.\.\.", rf"\1{inside}", text, flags=re.MULTILINE)
    before, here = set(names), os.getcwd()
    os.chdir(folder)  # where examples write
    try:
        exec(text, names)
    finally:
        os.chdir(here)
    return sorted(set(names) - before - {"__builtins__"})
