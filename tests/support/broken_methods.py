"""Methods that break one rule each, as somebody who writes a method might by mistake."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from outside import Natural
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.noise import Noise
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step

NONE = Properties()


class Mean:
    """A method whose update is the mean of what `coded` returns for the gradients."""

    properties: ClassVar[Properties] = NONE

    def coded(self, g: Tensor) -> Tensor:
        return g

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        sent = {k: self.coded(g) for k, g in grads.items()}
        update = dict(zip(grads, comm.mean(list(sent.values())), strict=True))
        return Aggregated(update, lambda: sent, state)


class WithoutMean(Mean):
    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        return Aggregated(grads, lambda: grads, state)


class InPlace(Mean):
    def coded(self, g: Tensor) -> Tensor:
        return g.clamp_(-0.1, 0.1)


class MomentumInPlace(Mean):
    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        momenta = {
            k: state.per_worker[k].mul_(0.9).add_(g) if state.per_worker else g
            for k, g in grads.items()
        }
        return super().aggregate(momenta, State(per_worker=momenta), comm, step)


@dataclass
class MomentumOfItsOwn(Mean):
    """Keeps its momentum outside of its state."""

    kept: dict[int, Grads] = field(default_factory=dict)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        before = self.kept.get(id(state))
        momenta = {k: g + 0.9 * before[k] for k, g in grads.items()} if before else grads
        out = super().aggregate(momenta, State(), comm, step)
        self.kept[id(out.state)] = momenta
        return out


class StreamOfItsOwn(Mean):
    def coded(self, g: Tensor) -> Tensor:
        return g * (torch.rand_like(g) < 0.5)


class DividesByNorm(Mean):
    def coded(self, g: Tensor) -> Tensor:
        return g / g.flatten(1).norm(dim=1).view(-1, *[1] * (g.dim() - 1)) if g.dim() > 1 else g


class WholeBytesOnly(Mean):
    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        return super().aggregate(
            {k: g[..., : g.shape[-1] // 8 * 8] for k, g in grads.items()}, state, comm, step
        )


class ExactButHalf(Mean):
    properties = Properties(exact=True)

    def coded(self, g: Tensor) -> Tensor:
        return g / 2


@dataclass(frozen=True)
class _Less:
    noise: Noise
    share: float

    def uniform(self) -> Tensor:
        return self.noise.uniform() * self.share


class RoundsDown(Natural):
    share: ClassVar[float] = 0

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> list[Tensor]:
        return super().encode(x, segments, _Less(noise, self.share))  # type: ignore[arg-type]


class SeldomRoundsUp(RoundsDown):
    """A rounding that is biased by a hundredth."""

    share = 0.99


class ThriceAsLong(Mean):
    properties = Properties(contractive=True)

    def coded(self, g: Tensor) -> Tensor:
        return 3 * g


class Vote(Mean):
    properties = Properties(mean_linear=True)

    def coded(self, g: Tensor) -> Tensor:
        return g.sign()


class DirectionInName(Mean):
    properties = Properties(direction=True)


class VectorsOnly(Mean):
    """Sends vectors, but zeros for matrices."""

    properties = Properties(divisible=True)

    def coded(self, g: Tensor) -> Tensor:
        return g * (g.dim() == 2)


class OneScaleOfAll(Mean):
    """Does not declare that its scope is global."""

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        largest = torch.stack([g.abs().max() for g in grads.values()]).max()
        return super().aggregate(
            {k: g.clamp(-largest / 2, largest / 2) for k, g in grads.items()}, state, comm, step
        )


class GlobalInName(Mean):
    properties = Properties(scope="global")


class SentIsDrawnAnew(Mean):
    """Returns `sent` values that are not those of the update."""

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        out = super().aggregate(grads, state, comm, step)
        return out._replace(sent=lambda: {k: g * torch.rand_like(g) for k, g in grads.items()})


class SentIsMore(Mean):
    """Says that it has sent whole gradients, of which it has sent half."""

    properties: ClassVar[Properties] = Properties(contractive=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        halves = {k: g / 2 for k, g in grads.items()}
        out = super().aggregate(halves, state, comm, step)
        return out._replace(sent=lambda: grads)


class FirstColumnOnly(Mean):
    properties: ClassVar[Properties] = Properties(contractive=True)

    def coded(self, g: Tensor) -> Tensor:
        return g * (torch.arange(g.shape[-1]) == 0) if g.dim() > 1 else g


class DrawnOnce(Mean):
    """Keeps a random half of the values, twice as large, but the same half in every step."""

    properties: ClassVar[Properties] = Properties(unbiased=True)

    def coded(self, g: Tensor) -> Tensor:
        kept = torch.rand(g.shape[1:], generator=torch.Generator().manual_seed(0)) < 0.5
        return 2 * g * kept


class Uphill(Mean):
    def coded(self, g: Tensor) -> Tensor:
        return -g


class LooksAtAllRows(Natural):
    """A method whose virtual workers see each other's rows."""

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> list[Tensor]:
        return super().encode(x.clamp(-x.abs().mean(), x.abs().mean()), segments, noise)


class NothingIsShared(Mean):
    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        return Aggregated(
            {k: g.mean(0, keepdim=True) for k, g in grads.items()}, lambda: grads, state
        )


class WithoutProperties(Codec):
    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        return [x]


class NotAMethod:
    def __init__(self, **settings: Any) -> None:
        pass
