"""Deep gradient compression: Top K of accumulated velocities, with momentum in front of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Goal,
    Grads,
    Properties,
    State,
    Step,
    add_scaled,
    zeros_of,
)
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.fields import Checked, Fraction, Natural, Neutral, Share, example
from gcbench.core.methods.top_k import TopK

_STAGES = 4  # of the warm-up, in which a quarter, a 16th, ... is sent


@dataclass(frozen=True)
class DGC(Checked):
    """Deep gradient compression: the largest accumulated velocities of each tensor.

    Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression", ICLR 2018, algorithm 4. At worker k
    with gradient g_k, velocity u_k and accumulated velocity v_k, all of the size of the gradient:

        u_k <- m u_k + g_k;    v_k <- v_k + u_k                     momentum correction
        sends the K = max(1, floor(fraction n)) largest |v_k| of a tensor of n values
        u_k and v_k <- 0 where they were sent                       momentum factor masking
        update = (1/W) sum over k of what k sent

    The update contains the momentum: the optimizer is `optimizer=sgd optimizer.momentum=0`. In the
    first `warmup_steps` steps, in four equal stages, the shares are 1/4, 1/16, 1/64 and 1/256, as
    far as these are above `fraction`.

    Sends K float32 values and K positions per tensor, as Top K does.

    Differences from the paper: it clips a worker's gradient to 1 / sqrt(W) of a norm before it is
    added, which is `clip_norm` of that size. It estimates the threshold of the K largest from a
    sample, so that about K are sent. Its warm-up is four epochs, with shares 1/4, 1/16, 1/64 and
    0.004, and 0.001 after it. What is accumulated is g, without the learning rate.
    """

    momentum: Annotated[Share, example(0.9)]
    """weight m of the old velocity [DGC, algorithm 4]"""
    fraction: Annotated[Fraction, example(0.01)]
    warmup_steps: Annotated[Natural, example(1000), Neutral(0)] = 0
    """first steps, in which 1/4, 1/16, 1/64 and 1/256 of the values are sent [DGC, section 3.3]"""
    index: Literal["int32", "auto"] = "int32"
    properties: ClassVar[Properties] = Properties(divisible=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        velocities = state.inner or State()
        old = velocities.per_worker or zeros_of(grads)
        u = add_scaled(grads, old, self.momentum)
        wanted = add_scaled(state.per_worker, u) if state.per_worker else u
        exchange = GatherExchange(TopK(self._share(step.number), self.index))
        out = exchange.aggregate(wanted, State(), comm, step)
        sent = out.sent()
        kept = [{k: torch.where(sent[k] == 0, part[k], 0) for k in grads} for part in (wanted, u)]
        memory = State(per_worker=kept[0], inner=State(per_worker=kept[1]))
        return out._replace(state=memory, goal=lambda: Goal(wanted, out.update))

    def _share(self, number: int) -> float:
        """Return the share of the values that is sent in a step."""
        if number >= self.warmup_steps:
            return self.fraction
        stage = number * _STAGES // self.warmup_steps
        return max(self.fraction, 0.25 ** (stage + 1))
