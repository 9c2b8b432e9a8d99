"""A user's own models and methods, right and wrong, to be named on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step


class Open(nn.Sequential):
    """A network that takes its input shape and number of outputs from the data."""

    def __init__(self, shape: tuple[int, ...], outputs: int | None = None, width: int = 5) -> None:
        assert outputs is not None
        inputs = torch.Size(shape).numel()
        super().__init__(
            nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)
        )


class Real(nn.Sequential):
    """Reads a value of a tensor when it is made, which fails for tensors without values."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, int(torch.tensor(10).item())))


class Seven(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 7))


class Limited(nn.Sequential):
    def __init__(self, limit: Any) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        assert not limit <= 0


class Narrow(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(65, 10))


class Pair(Seven):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Needy(Seven):
    def __init__(self, depth: int) -> None:
        super().__init__()


class Broken(nn.Module):
    def __init__(self) -> None:
        raise KeyError("layers")


class Spectral(nn.Sequential):
    def __init__(self) -> None:
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10))
        super().__init__(nn.Flatten(), layer)


class Centered(nn.Module):
    """Subtracts a running mean of its training inputs, which is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.read = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return self.read(x - self.mean)


class Steep(nn.Linear):
    """Has a gradient 10,000 times as large in worker 1's third backward pass."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x.flatten(1))
        self.passes += self.training
        if self.passes == 3 and dist.is_initialized() and dist.get_rank() == 1:
            return out + 9999 * (out - out.detach())
        return out


class Skipping(nn.Module):
    """Skips a layer at random in training, each process by draws of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.extra = nn.Linear(64, 10), nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.read(x.flatten(1))
        skips = self.training and torch.rand(()) < 0.5
        return x if skips else x + self.extra(x).relu()


class Complex(Seven):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(7, dtype=torch.complex64))


class Sparse(Seven):
    """A model that looks up a table, whose gradients are sparse."""

    def __init__(self, *, is_module: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 10, sparse=is_module)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.zeros(len(x), dtype=torch.long)
        looked_up = nn.functional.embedding(rows, self.table.weight, sparse=True)
        return looked_up + x.flatten(1)[:, :10]


class Untrained(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :10]


class NoModule:
    pass


@dataclass(frozen=True)
class Forgetful:
    """The mean of the gradients, with one thing left out, added, or in the wrong shape."""

    wrong: Literal["update", "sent", "shape", "name"]
    properties: ClassVar[Properties] = Properties()

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        update = dict(zip(grads, comm.mean(list(grads.values())), strict=True))
        sent = dict(grads)
        last = list(grads)[-1]
        if self.wrong == "update":
            del update[last]
        elif self.wrong == "sent":
            del sent[last]
        elif self.wrong == "name":
            update["extra"] = update[last]
        else:
            update[last] = update[last].repeat(2, *[1] * (update[last].dim() - 1))
        return Aggregated(update, lambda: sent, state)


class Spare(nn.Module):
    """Has a layer that its loss does not depend on, and a parameter without values."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.read = nn.Linear(64, outputs)
        self.unread = nn.Linear(64, 200)
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(x.flatten(1))


class Mixture(nn.Module):
    """A 1-D convolution, stacked experts, and a matrix that is smaller than its factors."""

    def __init__(self, shape: tuple[int, ...] = (1, 8, 8), outputs: int = 10) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 6, 5, bias=False)
        self.experts = nn.Parameter(torch.randn(3, 8, 10) / 8)
        self.gate = nn.Linear(5, 1, bias=False)
        self.last = nn.Linear(46, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        ours = self.convolution(flat.view(-1, 4, 16)[..., :6]).flatten(1)
        mixed = torch.einsum("bd,edf->bef", flat[:, :8], self.experts).flatten(1)
        logits: Tensor = self.last(
            torch.cat([ours, mixed, self.gate(flat[:, :5]).expand(-1, 4)], 1)
        )
        return logits
