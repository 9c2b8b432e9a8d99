"""Training loops of users who compress under DistributedDataParallel."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from gloo_pool import Process
from own_models import Forgetful, Mixture
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.methods.powersgd import PowerSGD

LR = 0.1
STEPS = 4  # DDP rebuilds its buckets after the first


class Net(nn.Module):
    """A small network; some of its tensors are set aside by every method for matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


class Scale(nn.Module):
    """A loss whose backward pass multiplies no matrices, which autocast would do in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 12))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.weight * inputs).sum()


def batch(rank: int, step: int, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(size, 12, generator=generator)
    return inputs, inputs[:, :4].argmax(1)


def parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def train_as_people_do(process: Process, name: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """Train with AdamW, accumulation and autocast, once without and once with a restart."""

    def start() -> tuple[DistributedDataParallel, gcbench.Compression, torch.optim.AdamW]:
        ddp = DistributedDataParallel(Net(), gradient_as_bucket_view=True)
        return ddp, gcbench.compress(ddp, name, **knobs), torch.optim.AdamW(ddp.parameters(), 0.01)

    def backward(ddp: Any, number: int, last: bool) -> Tensor:
        inputs, targets = batch(process.rank, number)
        with contextlib.nullcontext() if last else ddp.no_sync(), torch.autocast("cpu"):
            loss = cross_entropy(ddp(inputs), targets) / 2
            loss.backward()
        return loss

    def reload(compression: gcbench.Compression) -> dict[str, Any]:
        """As most scripts do, one process writes the checkpoint."""
        checkpoint = [saved(compression.state_dict(gather_to=1))]
        dist.broadcast_object_list(checkpoint, src=1)
        return torch.load(io.BytesIO(checkpoint[0]))

    return train_with_restart(start, backward, 20, parameters, reload)


def saved(state: object) -> bytes:
    torch.save(state, file := io.BytesIO())
    return file.getvalue()


def train_with_restart(
    start: Callable[[], tuple[Any, gcbench.Compression, torch.optim.Optimizer]],
    backward: Callable[[Any, int, bool], Tensor],
    steps: int,
    parameters: Callable[[Any], list[Tensor]],
    reload: Callable[[gcbench.Compression], dict[str, Any]],
) -> dict[str, Any]:
    """Train twice, on two micro-batches a step, the second time with a restart half way.

    `reload` saves the state of a compressor to a file, and loads it.
    """

    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> float:
        optimizer.zero_grad()
        total = sum(float(backward(model, 2 * number + micro, micro == 1)) for micro in range(2))
        optimizer.step()
        return total

    model, compression, optimizer = start()
    losses = [step(model, optimizer, number) for number in range(steps)]
    again, resumed, other = start()
    for number in range(steps // 2):
        step(again, other, number)
    state = reload(resumed)
    held = copy.deepcopy((again.state_dict(), other.state_dict()))
    again, resumed, other = start()
    for part, content in zip((resumed, again, other), (state, *held), strict=True):
        part.load_state_dict(content)
    for number in range(steps // 2, steps):
        step(again, other, number)
    return {
        "losses": losses,
        "parameters": parameters(model),
        "resumed": parameters(again),
        "bits": compression.bits_sent,
        "resumed bits": resumed.bits_sent,
        "steps": exchanges_of(compression),
        "handle": repr(compression),
        "memory": compression.memory,
        "ratio": compression.ratio,
    }


def measure_error(process: Process, name: str, knobs: dict[str, Any]) -> tuple[float, float]:
    """Return the error that a handle measured, and that of gradients beside plain DDP's."""
    inputs, targets = batch(process.rank, 0)
    plain, ddp = (DistributedDataParallel(Net()) for _ in range(2))
    ddp.load_state_dict(plain.state_dict())
    compression = gcbench.compress(ddp, name, error_every=1, **knobs)
    assert math.isnan(compression.error()) and math.isnan(compression.ratio)
    for model in (plain, ddp):
        cross_entropy(model(inputs), targets).backward()
    x, y = (torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (plain, ddp))  # type: ignore[union-attr]
    return compression.error(), float((y - x).norm() / x.norm())


def accumulate(process: Process, micro_batches: int) -> tuple[list[Tensor], int]:
    """Return the gradients of one batch in this many micro-batches, and the bits sent."""
    ddp = DistributedDataParallel(Net())
    compression = gcbench.compress(ddp, "qsgd", min_size=0)
    inputs, targets = batch(process.rank, 0)
    parts = list(zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True))
    for i, (x, y) in enumerate(parts):
        with contextlib.nullcontext() if i == len(parts) - 1 else ddp.no_sync():
            (cross_entropy(ddp(x), y) / micro_batches).backward()
    return gradients(ddp), compression.bits_sent


def backward_under_autocast(process: Process, enabled: bool) -> list[Tensor]:
    """Return the updates of one loss, with the backward pass under autocast if `enabled`."""
    ddp = DistributedDataParallel(Scale())
    gcbench.compress(ddp, "powersgd", rank=2)
    loss = ddp(batch(process.rank, 0)[0])
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        loss.backward()
    return gradients(ddp)


def gradients(ddp: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in ddp.parameters() if p.grad is not None]


def remove(process: Process) -> dict[str, list[Tensor]]:
    """Return gradients of a batch: plain, compressed, after remove(), and with another method."""
    plain, ddp = DistributedDataParallel(Net()), DistributedDataParallel(Net())

    def backward(model: DistributedDataParallel) -> list[Tensor]:
        model.zero_grad()
        inputs, targets = batch(process.rank, 0)
        cross_entropy(model(inputs), targets).backward()
        return gradients(model)

    return seen_around_remove(
        lambda name: gcbench.compress(ddp, name), lambda: backward(plain), lambda: backward(ddp)
    )


def seen_around_remove(
    compress: Callable[[str], gcbench.Compression],
    plain: Callable[[], list[Tensor]],
    backward: Callable[[], list[Tensor]],
) -> dict[str, list[Tensor]]:
    seen = {"plain": plain()}
    first = compress("scaled_sign")
    seen["sign"] = backward()
    first.remove()
    seen["removed"] = backward()
    compress("none")
    first.remove()  # again, which must not remove the new one
    seen["none"] = backward()
    return seen


def skip_infinite(
    process: Process, name: str, knobs: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the gradients of a step in which worker 1 overflowed and of the next, and the state.

    The state is that after the next step.
    """
    ddp = DistributedDataParallel(Net())
    compression = gcbench.compress(ddp, name, **knobs)
    seen = []
    for step in range(3):
        ddp.zero_grad()
        inputs, targets = batch(process.rank, step)
        loss = cross_entropy(ddp(inputs), targets)
        (loss * (torch.inf if step == 1 and process.rank == 1 else 1)).backward()
        seen.append(gradients(ddp))
    return seen[1], seen[2], tensors_of_state(compression)


def skip_scaled(
    process: Process, overlap: bool = False
) -> tuple[list[float], list[bool], list[bool]]:
    """Return GradScaler's scales, and whether weights and residual moved in each of three steps.

    Worker 1 overflows in the second.
    """
    ddp = DistributedDataParallel(Net())
    compression = gcbench.compress(ddp, "powersgd", rank=1, min_size=0, overlap=overlap)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scales, moved, state_moved = [scaler.get_scale()], [], []
    for step in range(3):
        before = [p.clone() for p in ddp.parameters()]
        state = [x.clone() for x in tensors_of_state(compression)]
        optimizer.zero_grad()
        inputs, targets = batch(process.rank, step)
        loss = cross_entropy(ddp(inputs), targets)
        scaler.scale(loss * (torch.inf if step == 1 and process.rank == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not all(map(torch.equal, before, ddp.parameters())))
        state_moved.append(
            not state or not all(map(torch.equal, state, tensors_of_state(compression)))
        )
    return scales, moved, state_moved


def tensors_of_state(compression: gcbench.Compression) -> list[Tensor]:
    """Return all tensors that the compressor remembers on this worker."""
    layers = [layer for kept in compression._kept.values() for layer in kept.state.layers()]
    return [x for one in layers for part in (one.shared, one.per_worker) for x in part.values()]


def exchanges_of(compression: gcbench.Compression) -> dict[str, int]:
    """Return how many exchanges there were, by what is exchanged together."""
    return {name: kept.exchanges for name, kept in compression._kept.items()}


def send_shapes(process: Process) -> tuple[int, Tensor]:
    """Return the bits of a step of a model with a 1-D convolution and experts, and an update."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Mixture())
    compression = gcbench.compress(ddp, "powersgd", rank=1)
    ddp(torch.randn(2, 1, 8, 8)).square().sum().backward()
    gradient = ddp.module.convolution.weight.grad
    assert gradient is not None
    return compression.bits_sent, gradient


def warn_of_more_bits(process: Process) -> list[str]:
    """Return the warnings of three steps whose factors are larger than the matrix."""
    ddp = DistributedDataParallel(nn.Linear(5, 1, bias=False))
    gcbench.compress(ddp, "powersgd", rank=1, min_ratio=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            ddp(torch.randn(2, 5)).sum().backward()
    return [str(w.message) for w in caught if "compressed" in str(w.message)]


class Slices(nn.Module):
    """A model whose first parameter has gaps: it is a part of the columns of another tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.part = nn.Parameter(torch.randn(6, 10)[:, :5])
        self.rest = nn.Parameter(torch.randn(100))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.part * inputs[:6, :5]).square().sum() + (self.rest * inputs.sum()).sum()


def gradients_of_slices(process: Process) -> dict[bool, list[Tensor]]:
    """Return the gradients of Slices, by whether a compressor averaged them."""
    seen = {}
    for compressed in (False, True):
        ddp = DistributedDataParallel(Slices())
        if compressed:
            gcbench.compress(ddp, "none")
        ddp(batch(process.rank, 0)[0]).backward()
        seen[compressed] = gradients(ddp)
    return seen


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3, dtype=torch.complex64))


def wrong_shape(process: Process) -> str:
    """Return the error message for a method that returns an update of another shape."""
    ddp = DistributedDataParallel(Net())
    gcbench.compress(ddp, Forgetful(wrong="shape"))
    return refusal_of_backward(ddp, process.rank)


def late_parameters(process: Process) -> list[str]:
    """Return the error messages for parameters that DDP does not know.

    One was added before compress, one was added after it, and one began to require a gradient.
    """
    sentences = []
    for case in ("before", "after", "unfrozen"):
        net = Net()
        if case == "unfrozen":
            net.layers.append(nn.Linear(4, 4).requires_grad_(False))
        ddp = DistributedDataParallel(net)
        if case == "before":
            net.layers.append(nn.Linear(4, 4))
        gcbench.compress(ddp, "none")
        if case == "after":
            net.layers.append(nn.Linear(4, 4))
        net.layers[3].requires_grad_(True)
        sentences.append(refusal_of_backward(ddp, process.rank))
    return sentences


class Half(nn.Module):
    """A model in float16 whose gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(2, dtype=torch.float16))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.factor * inputs.half()).sum()


def overflow_of_an_update(process: Process) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of two steps in float16, and what was remembered after each.

    With its residual, the second gradient is 78,008, which float16 cannot hold.
    """
    ddp = DistributedDataParallel(Half())
    compression = gcbench.compress(ddp, "top_k", fraction=0.5, min_size=0)
    seen, remembered = [], []
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.tensor([40_000.0, 39_000.0])).backward()
        seen += gradients(ddp)
        remembered += tensors_of_state(compression)
    return seen, remembered


def send_beside_a_backward_pass(process: Process) -> float:
    """Return what the other worker sent before its backward pass, received after this one's."""
    ddp = DistributedDataParallel(Net())
    gcbench.compress(ddp, "qsgd", min_size=0)
    received = torch.zeros(1)
    sending = dist.isend(torch.tensor([float(process.rank)]), 1 - process.rank)
    inputs, targets = batch(process.rank, 0)
    cross_entropy(ddp(inputs), targets).backward()
    dist.recv(received, 1 - process.rank)
    sending.wait()
    return float(received)


def save_whole(process: Process) -> bool:
    """Return whether a compressed DDP that was saved and loaded computes what it did."""
    ddp = DistributedDataParallel(Net())
    gcbench.compress(ddp, "qsgd")
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    inputs, _ = batch(process.rank, 0)
    return torch.equal(loaded(inputs), ddp(inputs))


def refusal_of_backward(ddp: DistributedDataParallel, rank: int) -> str:
    """Return the error message of a backward pass."""
    inputs, targets = batch(rank, 0)
    return message_of(lambda: cross_entropy(ddp(inputs), targets).backward())


def message_of(call: Callable[[], object]) -> str:
    """Return the message of the ValueError that `call` raises, if any."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def refusal(process: Process, case: str) -> str:
    """Return the error message of `compress`."""
    model = {"sparse": nn.Embedding(9, 4, sparse=True), "complex": Complex()}.get(case, Net())
    if case == "static":
        model.layers[2].to(torch.bfloat16)
    ddp = DistributedDataParallel(
        model,
        find_unused_parameters=case in ("unused", "skipped"),
        static_graph=case == "static",
        process_group=dist.new_subgroups(1)[0] if case == "nodes" else None,
    )
    if case == "skipped":  # an argument in PyTorch 2.14
        ddp.skip_all_reduce_unused_params = True
    hierarchical = {"compressor": "qsgd", "exchange": "hierarchical"}
    arguments: dict[str, Any] = {
        "module": {"module": model},
        "name": {"compressor": "powersdg"},
        "knob": {"bits": 4},
        "range": {"rank": 0},
        "text": {"rank": "a b"},
        "levels": {"compressor": "qsgd", "bits": 4, "levels": 100},
        "codecs": {"codec_backend": "fast"},
        "momentum": {"compressor": "onebit_adam"},
        "class": {"compressor": PowerSGD},
        "object": {"compressor": 3},
        "seed": {"seed": "one"},
        "seeds": {"seed": process.rank},
        "knobs": {"rank": 1 + process.rank},
        "unused": {"compressor": "scaled_sign", "exchange": "scatter_coded"},
        "overlap": {"overlap": "yes"},
        "global": {"overlap": True, "compressor": "maxnorm"},
        "overlaps": {"overlap": process.rank == 1},
        "nodes": {**hierarchical, "workers_per_node": 1},
        "node": {**hierarchical, "workers_per_node": 2},
        "compiled": {"module": torch.compile(ddp)},
    }.get(case, {})
    if case == "twice":
        gcbench.compress(ddp, "none")
    if case == "hook":
        ddp.register_comm_hook(None, lambda state, bucket: bucket.buffer())
    typed = {"module": ddp, "compressor": "powersgd", **arguments}
    return message_of(lambda: gcbench.compress(**typed))


def refused_states(process: Process) -> list[str]:
    """Return the error messages for states of another compressor and model, and for none at all.

    One of the other models has equally many values, but under other names.
    """
    first, *others = (
        gcbench.compress(DistributedDataParallel(module), "powersgd", rank=rank)
        for module, rank in (
            (Net(), 1),
            (Net(), 2),
            (nn.Linear(12, 4), 1),
            (nn.ModuleDict({"net": Net()}), 1),
        )
    )
    states: list[dict[str, Any]] = [*(other.state_dict() for other in others), {"model": {}}]
    states.append({"processes": [first.state_dict()]})
    return [message_of(lambda s=state: first.load_state_dict(s)) for state in states]


def join(process: Process, name: str, knobs: dict[str, Any]) -> dict[str, int]:
    """Return the exchanges after three batches on one worker and five on the other."""
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.001)
    compression = gcbench.compress(ddp, name, **knobs)
    with ddp.join():
        for step in range(3 + 2 * process.rank):
            inputs, targets = batch(process.rank, step)
            cross_entropy(ddp(inputs), targets).backward()
            ddp.zero_grad()
    return exchanges_of(compression)
