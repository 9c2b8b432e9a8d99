"""GlobalRandK: a quantizer of a few values, drawn at random from the whole gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from gcbench.core.codecs.indices import largest
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    sizes_of,
    unflatten,
    view_flat,
)
from gcbench.core.fields import Checked, Count, example


@dataclass(frozen=True)
class GlobalRandK(Checked):
    """A quantizer of a few values, drawn at random from the whole gradient.

    Vineeth S, "Unbiased Single-scale and Multi-scale Quantizers for Distributed Optimization",
    2021, sections 3.3 and 3.4 (GRandK-MN, GRandK-MN-TS). Of the n values of the whole gradient

        K are drawn without replacement every step, the same on all workers
        update = Q of the drawn values, 0 elsewhere

    with Q = `MaxNorm` or `MultiScale`, whose norm and scales are those of the drawn values. If K >=
    n, all values are drawn.

    The drawn values are not scaled up, so that E[update] is K / n times the mean: biased, with a
    smaller step for every value.

    Sends what Q sends for min(K, n) values, and no positions.

    Differences from the paper: it only says that values are drawn uniformly; the authors' code goes
    through one fixed permutation, K values per step. That code also keeps each worker's own
    gradient in the values that were not drawn, so that its replicas drift apart; here the update is
    zero there.
    """

    quantizer: Compressor
    k: Annotated[Count, example(10000)] = 10_000
    """values drawn from the whole gradient every step, the same on all workers [Vineeth S, section
    3.3]"""
    properties: ClassVar[Properties] = Properties(scope="global")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        sizes, device = sizes_of(grads), next(iter(grads.values())).device
        n = sum(sizes.values())
        noise = step.noise("global_randk", sizes, device, shared=True)
        drawn = largest(noise.uniform(), min(self.k, n))[0]
        few = {"drawn": view_flat(grads).index_select(1, drawn)}
        out = self.quantizer.aggregate(few, state, comm, replace(step, offsets={"drawn": 0}))

        def place(values: Grads) -> Grads:
            rows = values["drawn"]
            return unflatten(rows.new_zeros(len(rows), n).index_copy_(1, drawn, rows), grads)

        return Aggregated(place(out.update), lambda: place(out.sent()), out.state)
