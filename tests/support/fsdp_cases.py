"""Training loops of users who compress under fully_shard."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from gloo_pool import Process
from library_cases import (
    message_of,
    saved,
    seen_around_remove,
    tensors_of_state,
    train_with_restart,
)
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

import gcbench
from gcbench.core.codecs.noise import mix
from gcbench.core.comm.collectives import Comm
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.virtual import aggregate

NODES = 2
GROUPS = ("", "0", "2")  # the parameter groups of a net, of which the outermost is empty


def net(hidden: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 32))


class Sharded:
    """A net sharded over all processes, or over those of each of two nodes."""

    def __init__(
        self,
        between: bool = False,
        policy: MixedPrecisionPolicy | None = None,
        hidden: int = 32,
        nodes: int = NODES,
    ) -> None:
        self.mesh = mesh(between, nodes)
        self.model: Any = shard(net(hidden), self.mesh["gpu"], policy)
        self.between = between

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        return self.mesh["node"].get_group() if self.between else None

    def compress(self, name: Any, **knobs: Any) -> gcbench.Compression:
        return gcbench.compress(self.model, name, replicas=self.replicas, **knobs)

    def backward(self, rank: int, step: int) -> list[Tensor]:
        """Return this process's shard of the gradient of one batch, by parameter group."""
        self.model.zero_grad()
        self.loss(rank, step).backward()
        return gradients(self.model)

    def loss(self, rank: int, step: int) -> Tensor:
        inputs, targets = batch(rank, step)
        return cross_entropy(self.model(inputs).float(), targets)


@cache
def mesh(between: bool, nodes: int = NODES) -> DeviceMesh:
    """Return a mesh of all processes or of nodes; cached, as PyTorch keeps its groups."""
    shape = (nodes, dist.get_world_size() // nodes) if between else (dist.get_world_size(),)
    return init_device_mesh("cpu", shape, mesh_dim_names=("node", "gpu")[-len(shape) :])


def shard(model: nn.Module, mesh: Any, policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    for part in (*(m for m in model if isinstance(m, nn.Linear)), model):  # type: ignore[attr-defined]
        fully_shard(part, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return model


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 16, generator=generator)
    return inputs, inputs.argmax(1)


def gradients(model: Any) -> list[Tensor]:
    """Return the flat shards of both layers' gradients."""
    return [
        torch.cat([p.grad.to_local().flatten() for p in layer.parameters()])
        for layer in (model[0], model[2])
    ]


def whole(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor().detach().clone() for p in model.parameters()]  # type: ignore[attr-defined]


def gather(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the rows of all processes of a group."""
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, x.contiguous(), group=group)
    return torch.stack(rows)


def train_beside_plain(
    process: Process, between: bool, steps: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters after training with `none`, and those of plain FSDP2 or HSDP."""
    ours = Sharded(between)
    plain = shard(net(), ours.mesh)
    ours.compress("none")
    for model in (ours.model, plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for step in range(steps):
            optimizer.zero_grad()
            inputs, targets = batch(process.rank, step)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return whole(ours.model), whole(plain)


def update_and_that_of_exchange(process: Process, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return for every layer this shard's update, and the update of gcbench's own exchange.

    Shards are multiples of eight values, so that exchange=scatter pads none.
    """
    plain, ours = Sharded(), Sharded()
    ours.compress(build(QSGD(3, bucket_size=64)), seed=seed)
    flat: list[Tensor] = []
    for part in (plain.model[0], plain.model[2]):
        part.set_custom_reduce_scatter(Recorder(flat))
    plain.backward(process.rank, 0)
    flat.reverse()  # the last layer's gradient came first
    exchange = build(QSGD(3, bucket_size=64), exchange="scatter")
    pairs = []
    for i, update in enumerate(ours.backward(process.rank, 0)):
        rows = gather(flat[i])
        unit = mix(seed, 1 + i, 0)
        out = aggregate(exchange, {"gradient": rows}, seed=unit, comm=Comm(len(rows)))
        pairs.append((update, out.update["gradient"][0].chunk(len(rows))[process.rank]))
    return pairs


class Recorder:
    """A reduce-scatter that records its inputs."""

    def __init__(self, seen: list[Tensor]) -> None:
        self.seen = seen

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self.seen.append(input_tensor.clone())
        dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group)


class CountingTransport:
    """A transport that counts the bits that leave this process."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.rank, self.processes = inner, inner.rank, inner.processes
        self.bits = 0

    def all_reduce(self, flat: Tensor, op: Any) -> None:
        self.bits += 8 * flat.nbytes
        self.inner.all_reduce(flat, op)

    def all_gather(self, message: Tensor) -> Tensor:
        self.bits += 8 * message.nbytes
        return self.inner.all_gather(message)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        self.bits += 8 * by_process.nbytes // self.processes * (self.processes - 1)
        return self.inner.all_to_all(by_process)

    def pass_on(self, message: Tensor) -> Tensor:
        self.bits += 8 * message.nbytes
        return self.inner.pass_on(message)

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        self.bits += 8 * sum(row.nbytes for row in rows)
        return self.inner.exchange_rows(rows, row_bytes)


def run_choices(
    process: Process, between: bool, choices: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[list[Tensor], int, int]]:
    """Return for each choice this shard of an update, the metered bits, and those on the wire."""
    seen = {}
    for name, knobs in choices.items():
        ours = Sharded(between)
        compression = ours.compress(name, **knobs)
        wire = CountingTransport(compression._exchange.comm.transport)
        compression._exchange.comm.transport = wire  # type: ignore[assignment]
        seen[name] = (ours.backward(process.rank, 0), compression.bits_sent, wire.bits)
    return seen


def add_up(
    process: Process, between: bool, name: str, knobs: Mapping[str, Any], seed: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return for every layer the sums of updates and of mean gradients, and the mean residual."""
    ours, plain = Sharded(between), Sharded(between)
    compression = ours.compress(name, seed=seed, **knobs)
    updates, means = ([torch.zeros(())] * 2 for _ in range(2))
    for step in range(5):
        updates = [a + b for a, b in zip(updates, ours.backward(process.rank, step), strict=True)]
        mine = plain.backward(process.rank, step)
        if between:
            mine = [gather(g, plain.replicas).mean(0) for g in mine]
        means = [a + b for a, b in zip(means, mine, strict=True)]
    residuals = []
    for layer in GROUPS[1:]:
        residual = compression._kept[layer].state.per_worker  # of a group or its parameters
        flat = torch.cat([x.flatten() for x in residual.values()])
        mean = gather(flat, ours.replicas).mean(0)
        at = ours.mesh["gpu"].get_local_rank()
        residuals.append(mean if between else mean.chunk(dist.get_world_size())[at])
    return list(zip(updates, means, residuals, strict=True))


def train_as_people_do(
    process: Process, between: bool, name: str, knobs: Mapping[str, Any]
) -> dict[str, Any]:
    """Train with AdamW, accumulation and bf16, once without and once with a restart."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def start() -> tuple[Any, gcbench.Compression, torch.optim.AdamW]:
        ours = Sharded(between, policy)
        compression = ours.compress(name, **knobs)
        return ours.model, compression, torch.optim.AdamW(ours.model.parameters(), 0.02)

    def backward(model: Any, number: int, last: bool) -> Tensor:
        model.set_requires_gradient_sync(last)
        inputs, targets = batch(process.rank, number)
        loss = cross_entropy(model(inputs).float(), targets) / 2
        loss.backward()
        return loss

    def reload(compression: gcbench.Compression) -> dict[str, Any]:
        return torch.load(io.BytesIO(saved(compression.state_dict())))

    return train_with_restart(start, backward, 16, whole, reload)


def remove(process: Process, between: bool) -> dict[str, list[Tensor]]:
    """Return gradients of a batch: plain, compressed, after remove(), and with another method.

    `errors` are those of this process's shards, as the handle measured them, and as expected.
    """
    ours, plain = Sharded(between), Sharded(between)
    plain.model = shard(net(), ours.mesh)
    handles: list[gcbench.Compression] = []

    def compress(name: str) -> gcbench.Compression:
        handles.append(ours.compress(name, error_every=1))
        return handles[-1]

    seen = seen_around_remove(
        compress, lambda: plain.backward(process.rank, 0), lambda: ours.backward(process.rank, 0)
    )
    x, y = (torch.cat(seen[name]) for name in ("plain", "sign"))
    seen["errors"] = [torch.tensor(handles[0].error()), (y - x).norm() / x.norm()]
    return seen


def divide_by_own_factor(process: Process) -> tuple[list[Tensor], list[Tensor]]:
    """Return the mean gradients, and those with a divide factor of 1, which are sums."""
    ours = Sharded()
    ours.compress("none")
    means = ours.backward(process.rank, 0)
    for part in ours.model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    return means, ours.backward(process.rank, 0)


def skip_infinite(process: Process, between: bool, name: str) -> list[Tensor]:
    """Return the gradients of the step after one in which a worker's overflowed, and the state.

    Those of the last layer overflowed in the last process's shard only.
    """
    ours = Sharded(between)
    compression = ours.compress(name)
    for step in range(3):
        ours.model.zero_grad()
        inputs, targets = batch(process.rank, step)
        outputs = ours.model(inputs)
        loss = cross_entropy(outputs, targets)
        if step == 1 and process.rank == 1:
            loss = loss + torch.inf * outputs[:, -1].sum()
        loss.backward()
    return gradients(ours.model) + tensors_of_state(compression)


def estimates_behind_infinity(process: Process) -> tuple[list[Tensor], list[Tensor]]:
    """Return EF21's gradients with a lossless code after an overflow, and the true ones."""
    ours, plain = Sharded(), Sharded()
    ours.compress("ef21", fraction=1.0, min_size=0)
    for step in range(3):
        for model in (ours.model, plain.model):
            model.zero_grad()
            inputs, targets = batch(process.rank, step)
            outputs = model(inputs)
            loss = cross_entropy(outputs, targets)
            if step == 1 and process.rank == 1:
                loss = loss + torch.inf * outputs[:, -1].sum()
            loss.backward()
    return gradients(ours.model), gradients(plain.model)


def warnings_of_compress(process: Process) -> list[str]:
    """Return the beginnings of the warnings that `compress` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Sharded().compress("qsgd", min_size=0)
    return [str(one.message)[:45] for one in caught if one.category is UserWarning]


def warnings_of_groups(process: Process) -> list[list[str]]:
    """Return the warnings of `compress` for layers sharded as one group, and for frozen ones."""
    together = nn.Sequential(nn.Linear(100, 80, bias=False), nn.Linear(80, 100, bias=False))
    fully_shard([*together], mesh=mesh(between=False))
    frozen = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 4))
    frozen[0].requires_grad_(False)
    seen = []
    for model in (together, frozen):
        fully_shard(model, mesh=mesh(between=False))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gcbench.compress(model, "qsgd")
        seen.append([str(one.message)[:15] for one in caught if one.category is UserWarning])
    return seen


def refusal(process: Process, case: str) -> str:
    """Return the error message of `compress`, or of a backward pass after it."""
    between = case in ("overlap", "hierarchical", "clipped")
    half = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    ours = Sharded(between, half if case == "fp16" else None)
    replicas = ours.replicas
    name, knobs = {
        "low rank": ("powersgd", {"rank": 2}),
        "drawn": ("global_randk", {}),
        "summed": ("maxnorm", {}),
        "ragged": ("qsgd", {"code": "elias_dense"}),
        "clipped": ("qsgd", {"clip_norm": 0.5}),
        "hierarchical": ("qsgd", {"exchange": "hierarchical", "workers_per_node": 1}),
        "ready": (build(QSGD(3), exchange="sum"), {}),
        "unused": ("loco", {"min_size": 0}),  # a scale for 512 values of a group
    }.get(case, ("qsgd", {"min_size": 0}))
    if case == "HSDP":
        ours.model = shard(net(), mesh(between=True))
    if case == "tensor parallel":
        ours.model = net()
        rows = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(ours.model, mesh(between=True)["gpu"], rows)
        shard(ours.model, mesh(between=True)["node"])
    if case == "replicated":
        ours.model = replicate(net(), mesh=mesh(between=False))
    if case == "overlap":
        replicas = dist.group.WORLD
    if case == "mesh":
        replicas = ours.mesh
    if case == "complex":
        ours.model.factor = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    if case == "meta":
        ours.model.to("meta")
    if case == "twice":
        ours.compress("none")
    try:
        gcbench.compress(ours.model, name, replicas=replicas, **knobs)
        if case == "factor":
            ours.model[0].set_gradient_divide_factor(3.0)
        if case == "unused":
            ours.backward(process.rank, 0)
            ours.model.zero_grad()
            for layer in (ours.model[0], ours.model[2]):
                layer.bias.requires_grad_(False)
        ours.backward(process.rank, 1)
    except ValueError as error:
        return str(error)
    return ""


def refused_states(process: Process) -> list[str]:
    """Return the error messages for the states of another shard, and of another model."""
    first, other = Sharded().compress("top_k"), Sharded(hidden=64).compress("top_k")
    states = ({**first.state_dict(), "shard": -1}, other.state_dict())
    return [message_of(lambda s=state: first.load_state_dict(s)) for state in states]
