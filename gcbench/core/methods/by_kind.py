"""One method for convolutions, another for all other tensors."""

from __future__ import annotations

from dataclasses import dataclass

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    aggregate_parts,
)
from gcbench.core.methods.matrices import is_convolution


@dataclass(frozen=True)
class ByKind:
    """One method for convolutions, another for all other tensors.

    It serves to test what QSGD's text says about few bits for either kind (Alistarh et al., NeurIPS
    2017, section 5).

    A convolution is a tensor `[out, in, ...]` with four or more dimensions, as for `align`. Each
    kind is sent in a separate message.
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
            direction=a.direction or b.direction,
            scope="global" if "global" in (a.scope, b.scope) else "tensor",
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        convolutions = {k: g for k, g in grads.items() if is_convolution(g.shape[1:])}
        others = {k: g for k, g in grads.items() if k not in convolutions}
        return aggregate_parts(
            [(self.convolutions, convolutions), (self.others, others)], grads, state, comm, step
        )
