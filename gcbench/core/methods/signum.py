"""Signum: signs of a momentum, and a majority vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from gcbench.core.codecs.packing import majority, pack
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Grads,
    Properties,
    State,
    Step,
    unflatten,
    view_flat,
    zeros_of,
)
from gcbench.core.fields import Checked, Neutral, Share, example


@dataclass(frozen=True)
class Signum(Checked):
    """Signs of a momentum, and a majority vote.

    Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant",
    ICLR 2019, algorithm 1, a baseline of PowerSGD (tables 6 and 7). At worker m with gradient g_m:

        v_m <- beta v_m + (1 - beta) g_m;   update = sign(sum over m of sign(v_m))

    Before the first step, v_m is 0 (`momentum_start=zero`, as in the algorithm) or the first g_m
    (`momentum_start=gradient`, as in the code behind PowerSGD's tables). In the latter the first
    gradient weighs 1 / (1 - beta) times as much, and about a tenth to a fifth of the signs differ
    in the first eight steps.

    The update consists of -1, 0 and 1: the learning rate is the change of every value in a step,
    and the momentum is part of the method, not of the optimizer. The method is not linear in the
    gradients, and has no error feedback, because what is sent has no scale.

    Sends one bit per value by an all-gather; every worker counts the votes.

    Differences from the paper: with a tie, a value does not change. One bit cannot encode zero, so
    that sign(0) = +1 in even exchanges and -1 in odd ones. A value without a gradient (for example
    in the embedding of a word that is not in the batch) therefore stays within one learning rate of
    where it was; with a fixed sign, it would drift forever. There is no server that counts votes
    and sends one bit back.
    """

    momentum: Annotated[Share, example(0.9)]
    """weight beta of the old momentum, each worker's own, before signs are taken [Signum, algorithm
    1]"""
    momentum_start: Annotated[Literal["zero", "gradient"], Neutral("zero")] = "zero"
    """momentum before the first step: zero, or the first gradient"""
    properties: ClassVar[Properties] = Properties(divisible=True, direction=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        before, tensors = state.per_worker, list(grads.values())
        if not before:
            zero = self.momentum_start == "zero"
            before = zeros_of(grads) if zero else grads
        averages = torch._foreach_lerp(tensors, [before[k] for k in grads], self.momentum)
        momenta = dict(zip(grads, averages, strict=True))
        is_aye = torch.ge if step.number % 2 == 0 else torch.gt
        ayes = is_aye(view_flat(momenta), 0)
        everyone = comm.gather([pack(ayes.view(torch.uint8), 1)])[0]
        return Aggregated(
            unflatten(majority(everyone, ayes.shape[1]), grads),
            lambda: unflatten(2 * ayes.to(torch.float32) - 1, grads),
            State(per_worker=momenta),
        ).with_goal_of(momenta)
