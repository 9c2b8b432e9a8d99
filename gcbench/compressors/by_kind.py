"""One method for convolutions, another for all other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Compressor, Grads, Properties, State, Step


def is_convolution(shape: Sequence[int]) -> bool:
    """Whether a tensor `[out, in, ...]` has three dimensions or more."""
    return len(shape) > 2


@dataclass(frozen=True)
class ByKind:
    """Convolutions by one method and all other tensors by another, for what QSGD's text says of few bits on either (Alistarh
    et al., NeurIPS 2017, section 5).

    A convolution is a tensor `[out, in, ...]` of three dimensions and more, as for `align`. Each kind is a message of its own.
    """

    convolutions: Compressor
    others: Compressor

    @property
    def properties(self) -> Properties:
        a, b = self.convolutions.properties, self.others.properties
        return Properties(
            exact=a.exact and b.exact,
            unbiased=a.unbiased and b.unbiased,
            contractive=a.contractive and b.contractive,
            mean_linear=a.mean_linear and b.mean_linear,
            scope="global" if "global" in (a.scope, b.scope) else "tensor",
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        convolutions = {k: g for k, g in grads.items() if is_convolution(g.shape[1:])}
        parts = (self.convolutions, convolutions), (self.others, {k: g for k, g in grads.items() if k not in convolutions})
        outs = [method.aggregate(part, state.of(part), comm, step) for method, part in parts if part]
        bounds = [out.shannon_bits for out in outs if out.shannon_bits]
        return Aggregated(
            _joined([out.update for out in outs], grads),
            lambda: _joined([out.sent() for out in outs], grads),
            _both(outs),
            (lambda: _sum([bound() for bound in bounds])) if len(bounds) == len(outs) else None,
        )


def _both(outs: list[Aggregated]) -> State:
    first, *others = (out.state for out in outs)
    for other in others:
        first = first.updated(other)
    return first


def _joined(parts: list[Grads], like: Grads) -> Grads:
    whole = {k: x for part in parts for k, x in part.items()}
    return {k: whole[k] for k in like}


def _sum(tensors: list[Tensor]) -> Tensor:
    return sum(tensors[1:], start=tensors[0])
