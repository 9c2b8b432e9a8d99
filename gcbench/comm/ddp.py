"""DistributedDataParallel's buckets: which gradients travel together, and when they arrive."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BucketHook = Callable[[Sequence[nn.Parameter], Sequence[Tensor]], None]
"""Called in the backward pass with the parameters of a bucket and their gradients, in the same
order on all processes.
"""


def hook_buckets(
    module: Callable[..., Any], mib: float, on_bucket: BucketHook
) -> DistributedDataParallel:
    """Return `module` in a DDP whose buckets hold `mib` MiB of parameters or a little more.

    DDP itself exchanges nothing but, after the first step, in which all is one bucket, the order in
    which rank 0 saw the gradients: buckets are made by that. What it leaves in `p.grad` is the
    worker's own gradient.
    """
    with warnings.catch_warnings():
        # Newer versions of PyTorch have another name for `broadcast_buffers`.
        warnings.simplefilter("ignore", FutureWarning)
        ddp = DistributedDataParallel(
            module, broadcast_buffers=False, bucket_cap_mb=mib, gradient_as_bucket_view=True
        )

    def hook(_: None, bucket: Any) -> torch.futures.Future[Tensor]:
        parameters = bucket.parameters()
        # Gradients lie as their parameters do (channels last, for one), which the views that DDP
        # hands out know nothing of.
        gradients = [
            g.as_strided(p.shape, p.stride())
            for p, g in zip(parameters, bucket.gradients(), strict=True)
        ]
        on_bucket(parameters, gradients)
        ready: torch.futures.Future[Tensor] = torch.futures.Future()
        ready.set_result(bucket.buffer())
        return ready

    hook.__annotations__.clear()  # DDP looks for types there, and would find strings
    ddp.register_comm_hook(None, hook)
    return ddp
