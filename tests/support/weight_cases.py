"""Models under fully_shard whose weights are gathered in a code."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
from fsdp_cases import CountingTransport, Sharded, batch, gather, mesh, net, shard, whole
from gloo_pool import Process
from library_cases import message_of, saved
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

import gcbench
from gcbench.core.codecs.noise import mix
from gcbench.core.comm.fsdp import param_group_of
from gcbench.core.compressor import Step
from gcbench.core.methods.qsgd import QSGD


def train_beside_plain(
    process: Process, native: bool, policy: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters after training with weights sent as they are, and plain ones."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    where: Any = mesh(between=True) if native else mesh(between=False)
    models = [shard(net(), where, half if policy else None) for _ in range(2)]
    gcbench.compress_weights(models[0], "none", differences=False)
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = batch(process.rank, step)
            cross_entropy(model(inputs).float(), targets).backward()
            optimizer.step()
    return whole(models[0]), whole(models[1])


class Seen(nn.Module):
    """A layer that notes the weights with which its forward passes compute."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 30, bias=False)
        self.noted: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.noted.append(self.layer.weight.detach().clone())
        outputs: Tensor = self.layer(inputs)
        return outputs


def weights_of_steps(process: Process, differences: bool) -> dict[str, list[Tensor]]:
    """Return the weights of five steps as they are, as used, as coded here, and the bits."""
    model: Any = Seen()
    fully_shard(model, mesh=mesh(between=False), reshard_after_forward=True)
    handle = gcbench.compress_weights(
        model, "qsgd", bits=4, bucket_size=32, min_size=0, differences=differences, seed=3
    )
    handle._exchange.comm.transport = wire = CountingTransport(handle._exchange.comm.transport)  # type: ignore
    true, expected, bits = [], [], []
    codec, estimate = QSGD(7, bucket_size=32), None
    w = dist.get_world_size()
    for step in range(5):
        (full,) = whole(model)
        true.append(full)
        padded = torch.cat([full, full.new_zeros(w * -(-30 // w) - 30, 16)]).view(w, -1)
        if differences and estimate is None:
            estimate = padded
        else:
            base = estimate if differences else torch.zeros_like(padded)
            # All workers' codes, drawn in this process.
            at = Step(step, mix(3, 0), range(w), {"layer.weight": 0})
            sizes = {"layer.weight": padded.shape[1]}
            noise = at.noise("codec", sizes, padded.device)
            message = codec.encode(padded - base, (padded.shape[1],), noise)
            estimate = base.clone()
            codec.decode_add(message, (padded.shape[1],), estimate)
        expected.append(estimate.view(-1, 16)[:30].clone())
        inputs = torch.ones(30, 16, requires_grad=True)
        model(inputs).diagonal().sum().backward()
        model.noted.append(inputs.grad)  # the weights of the backward pass
        bits.append(torch.tensor([handle.bits_sent, wire.bits]))
        drift = 0.01 * torch.randn(30, 16, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            model.layer.weight.to_local().sub_(drift.chunk(w)[process.rank])
    return {"true": true, "used": model.noted, "expected": expected, "bits": bits}


def resume(process: Process) -> tuple[list[Tensor], list[Tensor], list[str]]:
    """Return the parameters after a run without and with a restart, and refusals of states."""

    def start() -> tuple[Any, Any, torch.optim.Optimizer]:
        model = shard(net(), mesh(between=False))
        handle = gcbench.compress_weights(model, "qsgd", bits=4, bucket_size=32, min_size=0)
        return model, handle, torch.optim.SGD(model.parameters(), lr=0.5)

    def train(model: Any, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            inputs, targets = batch(process.rank, step)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    model, handle, optimizer = start()
    train(model, optimizer, range(3))
    state = torch.load(io.BytesIO(saved(handle.state_dict())))
    again, resumed, other = start()
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    train(model, optimizer, range(3, 6))
    train(again, other, range(3, 6))
    states = ({**state, "shards": 3}, {**state, "exchanges": {}})
    messages = [message_of(lambda s=one: resumed.load_state_dict(s)) for one in states]
    return whole(model), whole(again), messages


def both(process: Process) -> list[float]:
    """Train with coded gradients and coded weights, and return losses; then remove both."""
    ours = Sharded()
    handles = [
        ours.compress("qsgd", bits=4, min_size=0, bucket_size=64),
        gcbench.compress_weights(ours.model, "qsgd", bits=4, min_size=0, bucket_size=64),
    ]
    optimizer = torch.optim.SGD(ours.model.parameters(), lr=0.5)
    losses = []
    for step in range(40):
        if step == 38:
            sent = [handle.bits_sent for handle in handles]
            for handle in handles:
                handle.remove()
        optimizer.zero_grad()
        loss = ours.loss(process.rank, step)
        loss.backward()
        losses.append(float(gather(loss.detach()).mean()))
        optimizer.step()
    assert sent == [handle.bits_sent for handle in handles] and min(sent) > 0
    return losses


def refusal(process: Process, case: str) -> str:
    """Return the error message of `compress_weights`, or of a forward pass after it."""
    name, knobs = {
        "low rank": ("powersgd", {}),
        "residual": ("sparseloco", {}),
        "scatter": ("qsgd", {"exchange": "scatter"}),
    }.get(case, ("qsgd", {}))
    model: Any = net()
    if case != "plain":
        fully_shard(model, mesh=mesh(between=False))

    def attempt() -> None:
        gcbench.compress_weights(model, name, **knobs)
        if case == "twice":
            gcbench.compress_weights(model, name)
        if case == "bytes":  # as FSDP hands over tensors with a form of their own
            some = torch.empty(4, dtype=torch.uint8)
            param_group_of(model)._all_gather_comm(some, some, None)
        model(batch(process.rank, 0)[0])

    return message_of(attempt)
