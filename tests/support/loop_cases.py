"""Loops that people have under DDP, each with whatever exchanges its gradients."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from accumulation_cases import Branches
from gloo_pool import Process
from library_cases import Complex, Net, batch, message_of, parameters
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gcbench

Make = Callable[..., Any]
"""Make a DDP of a module, with these arguments, that exchanges in one of `WAYS`."""

ALL_VALUES = {"compressor": "top_k", "fraction": 1.0, "min_size": 0}  # and a residual of zeros
STEPS = 3


def _hook(ddp: DistributedDataParallel) -> None:
    ddp.register_comm_hook(*gcbench.comm_hook(**ALL_VALUES))


WAYS: dict[str, Callable[[DistributedDataParallel], object]] = {
    "plain": lambda ddp: None,
    "no state": lambda ddp: gcbench.compress(ddp, "none"),
    "residual": lambda ddp: gcbench.compress(ddp, **ALL_VALUES),
    "overlap": lambda ddp: gcbench.compress(ddp, overlap=True, **ALL_VALUES),
    "comm_hook": _hook,
}


def loss_of(model: Callable[..., Any], rank: int, step: int, *more: Any) -> Tensor:
    inputs, targets = batch(rank, step)
    return cross_entropy(model(inputs, *more).float(), targets)


def train(
    ddp: Any,
    rank: int,
    backward: Callable[[int], None],
    optimizer: Any = None,
    steps: int = STEPS,
    before: Callable[[int], object] = lambda step: None,
    after: Callable[[], object] = lambda: None,
) -> list[Tensor]:
    """Return the parameters after steps that call `backward(step)`."""
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), 0.1)
    for step in range(steps):
        before(step)
        optimizer.zero_grad()
        backward(step)
        after()
        optimizer.step()
    return parameters(ddp)


def plainly(make: Make, rank: int, module: nn.Module, **settings: Any) -> list[Tensor]:
    ddp = make(module, **settings)
    return train(ddp, rank, lambda step: loss_of(ddp, rank, step).backward())


def accumulate(make: Make, rank: int, forgotten: bool = False) -> list[Tensor]:
    ddp = make(Net())

    def backward(step: int) -> None:
        quiet = contextlib.nullcontext() if forgotten else ddp.no_sync()
        with quiet:
            loss_of(ddp, rank, 2 * step).backward()
        loss_of(ddp, rank, 2 * step + 1).backward()

    return train(ddp, rank, backward)


def two_forwards(make: Make, rank: int) -> list[Tensor]:
    ddp = make(Net())
    return train(
        ddp, rank, lambda step: (loss_of(ddp, rank, step) + loss_of(ddp, rank, 9 + step)).backward()
    )


def autocast(make: Make, rank: int) -> list[Tensor]:
    ddp = make(Net())

    def backward(step: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(ddp, rank, step)
        loss.backward()

    return train(ddp, rank, backward)


def scale(make: Make, rank: int) -> list[Tensor]:
    """Worker 1 overflows in the second step, which all skip."""
    ddp = make(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        overflow = torch.inf if (rank, step) == (1, 1) else 1
        scaler.scale(loss_of(ddp, rank, step) * overflow).backward()
        scaler.step(optimizer)
        scaler.update()
    return parameters(ddp)


def clip(make: Make, rank: int) -> list[Tensor]:
    ddp = make(Net())
    return train(
        ddp,
        rank,
        lambda step: loss_of(ddp, rank, step).backward(),
        after=lambda: nn.utils.clip_grad_norm_(ddp.parameters(), 0.1),
    )


class Checkpointed(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = checkpoint(self.layers, inputs, use_reentrant=False)
        return outputs


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers[2] = nn.Linear(24, 12)
        self.layers[2].weight = nn.Parameter(self.layers[0].weight.detach().T.contiguous())
        self.again = self.layers[0]

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.again(self.layers(inputs))[:, :4]
        return outputs


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers.insert(1, nn.BatchNorm1d(24))


def frozen() -> Net:
    net = Net()
    net.layers[0].requires_grad_(False)
    return net


def half() -> Net:
    return Net().to(torch.bfloat16)


def in_half(make: Make, rank: int) -> list[Tensor]:
    ddp = make(half())
    return train(
        ddp,
        rank,
        lambda step: loss_of(lambda inputs: ddp(inputs.bfloat16()), rank, step).backward(),
    )


def freeze_in_turn(make: Make, rank: int) -> list[Tensor]:
    """The first layer is trained in the last step only, and the last one but in that."""
    ddp = make(Net(), find_unused_parameters=True, frozen_first=True)

    def turn(step: int) -> None:
        ddp.module.layers[0].requires_grad_(step == 2)
        ddp.module.layers[2].requires_grad_(step != 2)

    return train(ddp, rank, lambda step: loss_of(ddp, rank, step).backward(), before=turn)


def branch(make: Make, rank: int) -> list[Tensor]:
    ddp = make(Branches(), find_unused_parameters=True)
    branches = [(0, 0), (1, 0), (1, 1)]
    return train(ddp, rank, lambda step: loss_of(ddp, rank, step, branches[step][rank]).backward())


def uneven(make: Make, rank: int, with_zero: bool = False) -> list[Tensor]:
    ddp = make(Net())
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1) if with_zero else None
    joining = Join([ddp, zero]) if zero else ddp.join()
    with joining:
        train(
            ddp,
            rank,
            lambda step: loss_of(ddp, rank, step).backward(),
            zero,
            steps=STEPS + rank,
        )
    return parameters(ddp)  # which DDP sends to all at the end


def shard_optimizer(make: Make, rank: int) -> list[Tensor]:
    ddp = make(Net())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
    return train(ddp, rank, lambda step: loss_of(ddp, rank, step).backward(), optimizer)


def compiled(make: Make, rank: int) -> list[Tensor]:
    ddp = make(Net(), bucket_cap_mb=25)  # smaller ones do not suit PyTorch's compiler
    module = torch.compile(ddp, backend="eager")
    return train(ddp, rank, lambda step: loss_of(module, rank, step).backward())


def search_line(make: Make, rank: int) -> list[Tensor]:
    ddp = make(Net())
    optimizer = torch.optim.LBFGS(ddp.parameters(), 0.1, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, 0)
        loss.backward()
        return loss.detach() * 0  # which may not differ between workers

    for _ in range(2):
        optimizer.step(closure)
    return parameters(ddp)


def own_group(make: Make, rank: int) -> list[Tensor]:
    return plainly(make, rank, Net(), process_group=dist.new_group())


def look_up(make: Make, rank: int) -> list[Tensor]:
    ddp = make(nn.Embedding(9, 4, sparse=True))
    ddp(torch.tensor([rank])).sum().backward()
    return parameters(ddp)


class OfComplex(Complex):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor.abs() * inputs[:, :3]


def of_complex(make: Make, rank: int) -> list[Tensor]:
    ddp = make(OfComplex())
    ddp(torch.ones(1, 3)).sum().backward()
    return parameters(ddp)


class Stop(torch.autograd.Function):
    """A function of two tensors that has no gradient for the second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Stopped(Net):
    def __init__(self) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = Stop.apply(super().forward(inputs), self.constant)
        return outputs


LOOPS: dict[str, Callable[[Make, int], list[Tensor]]] = {
    "accumulation under `no_sync()`": accumulate,
    "accumulation, `no_sync()` forgotten": lambda make, rank: accumulate(make, rank, True),
    "two forward passes, one backward pass": two_forwards,
    "bf16 autocast": autocast,
    "parameters in bf16": in_half,
    "`GradScaler`, with an overflow": scale,
    "clipping": clip,
    "activation checkpointing": lambda make, rank: plainly(make, rank, Checkpointed()),
    "tied weights": lambda make, rank: plainly(make, rank, Tied()),
    "batch normalization": lambda make, rank: plainly(make, rank, Normed()),
    "frozen layers": lambda make, rank: plainly(make, rank, frozen()),
    "layers frozen and trained in turn": freeze_in_turn,
    "`find_unused_parameters=True`": branch,
    "`static_graph=True`": lambda make, rank: plainly(make, rank, Net(), static_graph=True),
    "`gradient_as_bucket_view=True`": lambda make, rank: plainly(
        make, rank, Net(), gradient_as_bucket_view=True
    ),
    "a process group of its own": own_group,
    "`ddp.join()`, uneven inputs": uneven,
    "`Join` with ZeRO-1": lambda make, rank: uneven(make, rank, True),
    "ZeRO-1": shard_optimizer,
    "LBFGS": search_line,
    "`torch.compile(ddp)`": compiled,
    "a gradient that is None": lambda make, rank: plainly(make, rank, Stopped()),
    "sparse gradients": look_up,
    "complex parameters": of_complex,
}


def go_through_loops(
    process: Process, ways: Sequence[str]
) -> dict[tuple[str, str], list[Tensor] | str]:
    """Return the parameters after each loop, with plain DDP and in these ways, or the sentence that
    refuses it.
    """
    return dict(_go_through(process.rank, ways))


def _go_through(
    rank: int, ways: Sequence[str]
) -> Iterator[tuple[tuple[str, str], list[Tensor] | str]]:
    for name, loop in LOOPS.items():
        for way in ("plain", *ways):
            torch.manual_seed(0)
            seen: list[list[Tensor]] = []
            make = partial(_make, WAYS[way])
            message = message_of(partial(_note, seen, loop, make, rank))
            yield (name, way), seen[0] if seen else message


def _note(
    seen: list[list[Tensor]], loop: Callable[[Make, int], list[Tensor]], make: Make, rank: int
) -> None:
    seen.append(loop(make, rank))


def _make(
    exchange: Callable[[DistributedDataParallel], object],
    module: nn.Module,
    frozen_first: bool = False,
    **settings: Any,
) -> DistributedDataParallel:
    """Return a DDP, of which a layer is `frozen_first` after it was made."""
    ddp = DistributedDataParallel(module, **{"bucket_cap_mb": 0.001, **settings})
    if frozen_first:
        ddp.module.layers[0].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "compressed: ")  # all values, and their indices
        exchange(ddp)
    return ddp
