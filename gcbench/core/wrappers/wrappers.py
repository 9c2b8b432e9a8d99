"""Wrappers around a method; `gcbench.core.wrappers.build` has their keys and their order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gcbench.core.codecs.hadamard import add_rotated_back, padded, rotate
from gcbench.core.codecs.scales import clip, norm
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Correcting,
    Given,
    Goal,
    Grads,
    Properties,
    State,
    Step,
    add_scaled,
    flatten,
    flatten_each,
    merge,
    refuse_other_tensors,
    sizes_of,
    split_rows,
    unflatten,
    zeros_of,
)
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.fields import Checked, Natural, NonNegative, Positive, Weight
from gcbench.core.methods.dense import Dense

SIZE = 4096  # values of a block that is rotated


@dataclass(frozen=True)
class CheckedGradients:
    """Raise TypeError for gradients that are not float32, and leave out empty parameters."""

    inner: Compressor

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        for name, g in grads.items():
            if g.dtype != torch.float32:
                raise TypeError(
                    f"the gradient of {name} is {g.dtype}; aggregate takes torch.float32: "
                    "type gradient.float()"
                )
        empty = {k: g[:1] for k, g in grads.items() if g.numel() == 0}
        if not empty:
            return self.inner.aggregate(grads, state, comm, step)
        if len(empty) == len(grads):
            return Aggregated(empty, lambda: empty, state)
        out = self.inner.aggregate(
            {k: g for k, g in grads.items() if k not in empty}, state, comm, step
        )
        nothing = Aggregated(
            empty, lambda: empty, State(), lambda: torch.zeros((), dtype=torch.float32)
        )
        return merge([out, nothing], grads)


@dataclass(frozen=True)
class NormClipping(Checked):
    """Scale each worker's whole gradient down to a 2-norm of `clip_norm`."""

    inner: Compressor
    clip_norm: Positive

    @property
    def properties(self) -> Properties:
        return Properties(scope="global")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        norms = torch.stack([norm(x) for x in flatten_each(grads)], dim=1)
        factor = (self.clip_norm / norm(norms)).clamp_max(1).float()
        clipped = {k: g * _per_row(factor, g) for k, g in grads.items()}
        return self.inner.aggregate(clipped, state, comm, step).with_goal_of(clipped)


@dataclass(frozen=True)
class DenseWarmup(Checked):
    """Send gradients uncompressed, in fp32, in the first `dense_steps` exchanges."""

    inner: Compressor
    dense_steps: Natural
    dense: Compressor = Dense()

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if self.covers(step):
            return self.dense.aggregate(grads, state, comm, step)
        return self.inner.aggregate(grads, state, comm, step)

    def covers(self, step: Step) -> bool:
        """Return whether this is one of the steps that send gradients uncompressed."""
        return step.number < self.dense_steps


@dataclass(frozen=True)
class ErrorFeedback(Checked):
    """Add the error-feedback residual, the part that was not sent before, to each gradient.

        corrected = grad + alpha residual;   residual <- beta residual + grad - sent(corrected)

    so that sent + residual' = grad + beta residual. alpha = beta = 1 is error feedback as in
    PowerSGD, algorithm 2 (Stich et al. 2018, Karimireddy et al. 2019); other values are ECQ-SGD's
    (Wu et al. 2018, equations 6 and 7); alpha = 0 switches error feedback off.

    The goal stays the gradient: the error of compression contains what earlier gradients add, and
    what sigma clipping takes away, as the residual keeps that for the next step.
    """

    inner: Compressor
    alpha: NonNegative = 1.0
    beta: Weight = 1.0

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return Properties(
            mean_linear=inner.mean_linear, scope=inner.scope, divisible=inner.divisible
        )

    @cached_property
    def _correcting(self) -> Correcting | None:
        return self.inner if isinstance(self.inner, Correcting) else None

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        residual = state.per_worker or zeros_of(grads)
        inner_state, keep = state.inner or State(), self.beta - self.alpha
        given = Given(grads, residual, self.alpha, keep, in_place=step.in_place)
        if self._correcting:
            out, left = self._correcting.aggregate_corrected(given, inner_state, comm, step)
        else:
            out, left = _aggregate_added(self.inner, given, inner_state, comm, step)
        return out._replace(state=State(per_worker=left, inner=out.state), goal=None)


def _aggregate_added(
    inner: Compressor, given: Given, state: State, comm: Comm, step: Step
) -> tuple[Aggregated, Grads]:
    corrected = given.added()
    out = inner.aggregate(corrected, state, comm, step)
    sent = out.sent()
    refuse_other_tensors(sent, given.grads)
    return out, given.left_by(add_scaled(corrected, sent, -1))


@dataclass(frozen=True)
class SigmaClipping(Checked):
    """Clip each value to `clip_sigma` standard deviations of its tensor, on each worker.

    With `rotate=hadamard`, rotated values are clipped.

    Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
    NeurIPS 2017, section 4:

        clip(v_i) = v_i where |v_i| <= c sigma, else sgn(v_i) c sigma
        sigma^2 = the variance of the tensor's values

    Differences from the paper: a tensor whose standard deviation is zero, because its values are
    all equal or it has only one, is not clipped.
    """

    inner: Compressor
    clip_sigma: Positive

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return Properties(
            contractive=inner.contractive, scope=inner.scope, divisible=inner.divisible
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if out := self._aggregate_native(Given(grads, {}), state, comm, step):
            return out[0]._replace(goal=lambda: Goal(self._clip(grads), out[0].update))
        clipped = self._clip(grads)
        return self.inner.aggregate(clipped, state, comm, step).with_goal_of(clipped)

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        out = self._aggregate_native(given, state, comm, step)
        return out or _aggregate_added(self, given, state, comm, step)

    def _aggregate_native(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads] | None:
        """Return the aggregate by native code that also clips; None: there is none."""
        inner = self.inner
        if isinstance(inner, GatherExchange) and inner.codec_in_native_code(given.grads):
            return inner.aggregate_corrected(
                given._replace(clip=self.clip_sigma), state, comm, step
            )
        return None

    def _clip(self, grads: Grads) -> Grads:
        clipped = clip(flatten_each(grads), self.clip_sigma)
        return {k: x.view_as(g) for (k, g), x in zip(grads.items(), clipped, strict=True)}


@dataclass(frozen=True)
class BucketsThroughGradient:
    """Pass all tensors on as one, so that buckets run through the whole gradient.

    This is `bucket_scope=gradient`, as described in QSGD (section 4, "each gradient as a
    one-dimensional vector") and ORQ (section 5, "evenly divides the whole gradient into buckets of
    the same length"): only the last bucket is short, and a bucket may span tensors.
    """

    inner: Compressor

    @property
    def properties(self) -> Properties:
        return self.inner.properties._replace(scope="global")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        whole = {"gradient": flatten(grads)}
        out = self.inner.aggregate(whole, state, comm, replace(step, offsets={"gradient": 0}))
        return out.mapped(lambda one: unflatten(one["gradient"], grads))


def _per_row(x: Tensor, like: Tensor) -> Tensor:
    """Return `x` `[w]` reshaped so that it broadcasts over `like` `[w, ...]`."""
    return x.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class Rotated:
    """Rotate gradients before they are coded, and the mean of what they are decoded to back.

    Suresh et al., "Distributed Mean Estimation with Limited Communication", ICML 2017, section 3.
    With the rotation R of a step, and worker i's gradient v_i:

        update = R^-1 (1/W) sum_i decode(encode(R v_i))

    R is made of the randomized Hadamard transforms of `hadamard.py`, in blocks of 4,096 values of a
    tensor. All workers draw the same one, so that one rotation back is enough, no seed is sent, and
    a sum of codes (`exchange=sum`) is that of rotated values, as in THC (Li et al., NSDI 2024). R
    keeps lengths and inner products, so that an unbiased code stays unbiased.

    Tensors are filled up with zeros to whole blocks, a last one to a power of two from 64 on. These
    zeros are sent, too.

    Differences from the papers: two transforms instead of one, as in `Eden`, whose workers draw a
    rotation each. THC's codes are uneven levels at multiples of a step, and large values are cut.
    """

    inner: Compressor

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        tensors, sizes = flatten_each(grads), sizes_of(grads)
        segments, device = tuple(sizes.values()), tensors[0].device
        noise = step.noise("rotation", sizes, device, shared=True)
        shapes = {k: (n,) for k, n in zip(sizes, padded(segments, SIZE), strict=True)}
        rotated = split_rows(rotate(tensors, noise, SIZE), shapes)
        out = self.inner.aggregate(rotated, state, comm, step)

        def back(values: Grads) -> Grads:
            y = flatten(values)
            x = y.new_zeros(len(y), sum(segments))
            add_rotated_back(y, noise, SIZE, x.split(segments, dim=1))
            return unflatten(x, grads)

        return out.mapped(back)
