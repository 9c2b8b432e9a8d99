"""Models sharded inside two nodes and compressed between them, and the same in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from fsdp_cases import NODES, batch, mesh, whole
from gloo_pool import Process
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.nn.functional import cross_entropy

import gcbench
from gcbench.core.codecs.noise import mix
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.method_files import read_method
from gcbench.core.parameters import shapes_of_parameters
from gcbench.core.wrappers.virtual import aggregate
from gcbench.runner.launch.instantiate import make_compressor

LR, STEPS, SHARDS = 0.05, 4, 2
GROUPS = (
    "",
    "scale",
    "first",
    "last",
)  # in the order of modules; the outermost has what is in no other


class Scale(nn.Module):
    """Factors in one row, which only the first shard has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 16))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


class Net(nn.Module):
    """Layers with odd numbers of rows, in groups that trade places; one has a single row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = Scale()
        self.experts = nn.Parameter(torch.randn(3, 13, 13) / 4)  # a stack: two matrices and one
        self.filter = nn.Conv1d(1, 5, 4, bias=False)
        self.first = nn.Linear(16, 13)
        self.last = nn.Linear(13, 32)
        self.wide = nn.Linear(13, 16, bias=False)

    def forward(self, inputs: Tensor, swapped: bool) -> Tensor:
        x = self.scale(inputs)
        if swapped:
            x = self.last(x[:, :13]).relu()[:, :16]
        x = self.wide(self.first(x).relu())
        if not swapped:
            x = self.last(x[:, :13]).relu()[:, :16]
        x = self.filter(x.unsqueeze(1)).flatten(1)[:, :39].unflatten(1, (3, 13))
        outputs: Tensor = torch.einsum("bkn,knm->bm", x, self.experts).clone()
        return outputs


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    inputs, targets = batch(rank, step)
    return cross_entropy(model(inputs, step % 2 == 1), targets % 13)


def group_of(name: str) -> str:
    module = name.partition(".")[0]
    return module if module in GROUPS else ""


def sharded() -> Any:
    model: Any = Net()
    for part in (model.scale, model.first, model.last, model):
        fully_shard(part, mesh=mesh(between=True)["gpu"])
    return model


def train_between_nodes(
    process: Process, choices: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[list[Tensor], int, int]]:
    """Return for each choice the parameters, the bits that this worker sent, and its memory."""
    seen = {}
    replicas = mesh(between=True)["node"].get_group()
    for name, knobs in choices.items():
        model = sharded()
        compression = gcbench.compress(
            model, name, replicas=replicas, codec_backend="eager", **knobs
        )
        optimizer = torch.optim.SGD(model.parameters(), LR)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, process.rank, step).backward()
            optimizer.step()
        seen[name] = (whole(model), compression.bits_sent, compression.memory)
    return seen


def train_in_one_process(
    process: Process, choices: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[list[Tensor], list[int], list[int]]]:
    """Return for each choice the parameters, and each shard's bits and bytes of state.

    Two virtual workers train the same row blocks, with the mean gradients of their nodes.
    """
    return {name: _train_blocks(name, knobs) for name, knobs in choices.items()}


def _train_blocks(name: str, knobs: Mapping[str, Any]) -> tuple[list[Tensor], list[int], list[int]]:
    compressor = make_compressor(read_method(name, knobs)["compressor"])
    model = Net()
    shapes = shapes_of_parameters(model)
    comms = [Comm(NODES) for _ in range(SHARDS)]
    states = {(group, shard): State() for group in GROUPS for shard in range(SHARDS)}
    for step in range(STEPS):
        means = [_mean_gradient(model, node, step) for node in range(NODES)]
        updates: dict[str, list[Tensor]] = {key: [] for key in shapes}
        for (i, group), shard in ((g, s) for g in enumerate(GROUPS) for s in range(SHARDS)):
            rows = {
                key: torch.stack([_block(mean[key], shard) for mean in means]).view(
                    NODES, -1, *shapes[key][1:]
                )
                for key in shapes
                if group_of(key) == group
            }
            out = aggregate(
                compressor,
                rows,
                number=step,
                seed=mix(1, i, shard),
                state=states[group, shard],
                comm=comms[shard],
            )
            states[group, shard] = out.state
            for key, update in out.update.items():
                updates[key].append(update[0])
        with torch.no_grad():
            for key, p in model.named_parameters():
                p -= LR * torch.cat(updates[key]).view(p.shape)
    bits = [comm.meter.sent_bits[0] for comm in comms]
    return [p.detach() for p in model.parameters()], bits, _bytes(states)


def _mean_gradient(model: nn.Module, node: int, step: int) -> dict[str, Tensor]:
    gradients = []
    for rank in range(SHARDS * node, SHARDS * node + SHARDS):
        model.zero_grad()
        loss_of(model, rank, step).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    return {name: (gradients[0][name] + gradients[1][name]) / 2 for name in gradients[0]}


def _block(x: Tensor, shard: int) -> Tensor:
    rows = math.ceil(len(x) / SHARDS)
    return x[shard * rows : (shard + 1) * rows]


def _bytes(states: Mapping[tuple[str, int], State]) -> list[int]:
    totals = [0] * SHARDS
    for (_, shard), state in states.items():
        for layer in state.layers():
            for part in (layer.shared, layer.per_worker):
                totals[shard] += sum(x[:1].nbytes for x in part.values())
    return totals


def names_in_states(process: Process) -> list[str]:
    """Return the names of the tensors that PowerSGD with error feedback keeps on this process."""
    replicas = mesh(between=True)["node"].get_group()
    model = sharded()
    compression = gcbench.compress(model, "powersgd", rank=1, min_ratio=0, replicas=replicas)
    loss_of(model, process.rank, 0).backward()
    layers = [layer for kept in compression._kept.values() for layer in kept.state.layers()]
    return sorted({name for layer in layers for name in layer.per_worker})


def train_columns(process: Process) -> tuple[Tensor, Tensor]:
    """Return the mean gradient of columns of a matrix, as sent, and that of plain training."""
    replicas = mesh(between=True)["node"].get_group()
    gradients = []
    for compressed in (True, False):
        model: Any = nn.Linear(8, 6, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.arange(48).view(6, 8) / 48)
        where = mesh(between=True)
        fully_shard(
            model, mesh=where["gpu"] if compressed else where, shard_placement_fn=lambda p: Shard(1)
        )
        if compressed:
            gcbench.compress(model, "powersgd", rank=4, min_ratio=0, replicas=replicas)
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(process.rank))
        model(inputs).square().sum().backward()
        gradients.append(model.weight.grad.full_tensor())
    return gradients[0], gradients[1]
