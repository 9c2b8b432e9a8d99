"""Steps of optimizers in one or two passes over memory, on CPUs, with the rounding of PyTorch's.

PyTorch makes a pass for each operation: 12 copies of the parameters for SGD with momentum and
weight decay, 24 for AdamW. Its `fused` ones round otherwise, so that a run would not repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_int64, c_void_p
from enum import IntEnum

import torch
from torch import Tensor

from gcbench.core.codecs.native import address, is_native, load_native


class Along(IntEnum):
    """The direction of a step of SGD, where d is the gradient and m its momentum."""

    MOMENTUM = 0  # m
    NESTEROV = 1  # d + momentum m
    BOTH = 2  # d + m


def are_native(xs: Sequence[Tensor], *others: Sequence[Tensor]) -> bool:
    """Return whether native code takes these parameters, and as many tensors of their sizes."""
    return all(
        is_native(x) and (x.layout, x.shape, x.is_contiguous()) == (torch.strided, like.shape, True)
        for tensors in (xs, *others)
        for x, like in zip(tensors, xs, strict=True)
    )


def momentum_step(
    xs: Sequence[Tensor],
    ds: Sequence[Tensor],
    ms: Sequence[Tensor],
    lr: float,
    kept: float,
    added: float,
    decay: float,
    along: Along,
    first: bool = False,
) -> None:
    """Step parameters x in place, and their momenta m; neither has to be finite.

        d <- d + decay x;   m <- kept m + added d, in the `first` step d;   x <- x - lr along

    Args:
        xs, ds, ms: parameters, gradients and momenta, for which `are_native` is true. d is not
            written.
    """
    load_native().momentum_step(
        *(len(xs), _sizes(xs), _addresses(xs), _addresses(ds), _addresses(ms)),
        *(lr, kept, added, decay, along, first, torch.get_num_threads()),
    )


def adam_step(
    xs: Sequence[Tensor],
    ds: Sequence[Tensor],
    ms: Sequence[Tensor],
    vs: Sequence[Tensor],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decoupled: bool,
    step: float,
) -> None:
    """Take the `step`-th step of Adam, or with `decoupled` decay of AdamW, in place.

    Tensors are as in `momentum_step`. PyTorch takes square roots, which need not be rounded
    correctly in its library.
    """
    b1, b2 = betas
    sizes, x, m, threads = _sizes(xs), _addresses(xs), _addresses(ms), torch.get_num_threads()
    load_native().adam_moments(
        *(len(xs), sizes, x, _addresses(ds), m, _addresses(vs)),
        *(1 - b1, b2, 1 - b2, 0.0 if decoupled else decay, threads),
    )
    roots = [v.sqrt() for v in vs]
    load_native().adam_step(
        *(len(xs), sizes, x, m, _addresses(roots)),
        *(1 - lr * decay if decoupled else 1.0, lr / (1 - b1**step)),
        *((1 - b2**step) ** 0.5, eps, threads),
    )


def _sizes(xs: Sequence[Tensor]) -> Array[c_int64]:
    return (c_int64 * len(xs))(*[x.numel() for x in xs])


def _addresses(xs: Sequence[Tensor]) -> Array[c_void_p]:
    return (c_void_p * len(xs))(*[address(x, torch.float32, x.numel()) for x in xs])
