"""What handles of all kinds say of loops in two or four processes."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from fsdp_cases import Sharded
from gloo_pool import Process
from library_cases import Net, batch, parameters
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench


class Wrapper(nn.Module):
    """A module that passes calls on to another one, as those of Fabric do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs)
        return outputs


def ratios(process: Process, name: str, **knobs: Any) -> dict[str, float]:
    """Return the ratio of each kind of handle after two steps."""
    inputs, targets = batch(process.rank, 0)
    handles, seen = {}, {}
    for kind, given in (("ddp", {}), ("overlap", {"overlap": True})):
        ddp = DistributedDataParallel(Net())
        handles[kind] = ddp, gcbench.compress(ddp, name, **given, **knobs)
    wrapped = Wrapper(DistributedDataParallel(Net()))
    handles["wrapper"] = wrapped, gcbench.compress(wrapped, name, **knobs)
    for kind, (model, handle) in handles.items():
        for _ in range(2):
            cross_entropy(model(inputs), targets).backward()
        seen[kind] = handle.ratio
    for kind, between in (("fsdp", False), ("replicas", True)):
        if between and process.world.size() < 4:
            continue
        sharded = Sharded(between)
        compression = sharded.compress(name, **knobs)
        for _ in range(2):
            sharded.model(torch.ones(4, 16)).square().sum().backward()
        seen[kind] = compression.ratio
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    local = gcbench.local_steps(net, sgd, every=1, compressor=name, **knobs)
    for _ in range(2):
        cross_entropy(net(inputs), targets).backward()
        sgd.step()
    return {**seen, "local steps": local.ratio}


def warnings_of_sums(process: Process, name: str, kind: str) -> list[str]:
    """Return the warnings of two steps of three exchanges each into p.grad."""
    inputs, targets = batch(process.rank, 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if kind == "replicas":
            sharded = Sharded(between=True)
            sharded.compress(name)
            model, loss = sharded.model, lambda: sharded.model(torch.ones(4, 16)).square().sum()
        else:
            model = DistributedDataParallel(Net())
            gcbench.compress(model, name, overlap=kind == "overlap")
            loss = lambda: cross_entropy(model(inputs), targets)
        for _ in range(2):
            model.zero_grad()
            for _ in range(3):
                loss().backward()
    return [str(one.message) for one in said if "p.grad" in str(one.message)]


def under_default(process: Process, default: torch.dtype) -> list[Tensor]:
    """Return the parameters of loops where this is the user's default dtype."""
    seen = []
    nets = [Net(), Net()]
    ddp, inputs = DistributedDataParallel(nets[0]), batch(process.rank, 0)[0]
    torch.set_default_dtype(default)
    try:
        gcbench.compress(ddp, "qsgd", exchange="sum", min_size=0)
        sgds = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
        gcbench.local_steps(nets[1], sgds[1], every=2, compressor="maxnorm", min_size=0)
        for model, sgd in zip((ddp, nets[1]), sgds, strict=True):
            for _ in range(4):
                model(inputs).square().mean().backward()
                sgd.step()
                sgd.zero_grad()
            seen += parameters(model)
    finally:
        torch.set_default_dtype(torch.float32)
    return seen
