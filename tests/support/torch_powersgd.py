"""PyTorch's own PowerSGD beside ours, in the same processes with the same gradients.

It runs under DistributedDataParallel. DDP checks the annotations of a hook, which it would not
understand as strings, so this file does not postpone them.
"""

import torch
import torch.distributed as dist
from gloo_pool import Process
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.compressor import Grads, State
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.virtual import aggregate
from gcbench.runner.check.steps import flat, gradients

SHAPES = {
    "conv": (8, 4, 3, 3),
    "bias": (8,),
    "matrix": (20, 30),
    "twin": (20, 30),
    "head": (10, 20),
    "head bias": (10,),
}
IGNORED = 2  # first steps that the hook sends whole, while DDP rebuilds its buckets


class Linear(nn.Module):
    """A loss whose gradients are the tensors that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.names = list(SHAPES)
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.zeros(shape)) for shape in SHAPES.values()]
        )

    def forward(self, grads: Grads) -> Tensor:
        return torch.stack(
            [(p * grads[k]).sum() for k, p in zip(self.names, self.weights, strict=True)]
        ).sum()


def factors(rank: int) -> Grads:
    """Return the first Q, which both start with."""
    matrices = {k: s for k, s in SHAPES.items() if len(s) > 1}
    return {
        k: torch.randn(
            1, torch.Size(s[1:]).numel(), rank, generator=torch.Generator().manual_seed(i)
        )
        for i, (k, s) in enumerate(matrices.items())
    }


def compare(
    process: Process, rank: int, steps: int, error_feedback: bool
) -> list[tuple[float, float, float]]:
    """Return for every step the distances of updates and residuals, and the update's norm.

    Distances are relative to that norm.
    """
    model = Linear()
    ddp = DistributedDataParallel(model, bucket_cap_mb=100)
    hook_state = PowerSGDState(
        dist.group.WORLD,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=IGNORED,
        min_compression_rate=1,
        use_error_feedback=error_feedback,
    )
    name_of = dict(zip(map(id, model.weights), model.names, strict=True))
    order: list[str] = []

    def hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        assert bucket.index() == 0 and bucket.is_last(), "one bucket"
        order[:] = [name_of[id(p)] for p in bucket.parameters()]
        if state.iter == IGNORED:
            by_shape: dict[tuple[int, ...], list[str]] = {}
            for name in order:
                if name in factors(rank):
                    n = SHAPES[name][0]
                    by_shape.setdefault((n, torch.Size(SHAPES[name]).numel() // n), []).append(name)
            # The hook orders its factors by shape.
            names = [name for group in by_shape.values() for name in group]
            state.q_memory_dict[0] = torch.cat([factors(rank)[name].flatten() for name in names])
            state.p_memory_dict[0] = torch.empty(sum(rank * SHAPES[name][0] for name in names))
        return powerSGD_hook(state, bucket)

    ddp.register_comm_hook(hook_state, hook)
    for _ in range(IGNORED):
        ddp({k: torch.zeros(s) for k, s in SHAPES.items()}).backward()

    method = PowerSGD(rank, residual="aggregated")
    ours = build(method, error_feedback=error_feedback, min_dims=2)
    start = State(shared={k: q.mT for k, q in factors(rank).items()})
    state = State(inner=start) if error_feedback else start
    comm = process.comm(2)
    distances = []
    for number in range(steps):
        grads = gradients(comm.local, number, SHAPES)
        ddp.zero_grad()
        ddp({k: g[0] for k, g in grads.items()}).backward()
        theirs = {
            k: p.grad.unsqueeze(0)
            for k, p in zip(model.names, model.weights, strict=True)
            if p.grad is not None
        }
        out = aggregate(ours, grads, number=number, state=state, comm=comm)
        state = out.state
        norm = flat(theirs).norm()
        distance = (flat(out.update) - flat(theirs)).norm() / norm
        apart = 0.0
        if error_feedback:
            sizes = [torch.Size(SHAPES[k]).numel() for k in order]
            errors = dict(zip(order, hook_state.error_dict[0].split(sizes), strict=True))
            # PyTorch also keeps the difference of a vector from the average; ours are sent whole
            # and have no residual.
            apart = max(
                float((state.per_worker[k].flatten() - errors[k]).norm() / norm)
                for k in state.per_worker
            )
        distances.append((float(distance), apart, float(norm)))
    return distances
