"""A training loop of one's own under gcbench, which continues from its checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.meeting import MEETING_FILE
from gcbench.runner.config.keys import read_knobs
from gcbench.runner.launch.local import Interrupted, WorkerFailed, run_processes

END_OF_LOOP = "end.pt"  # what is left of one that is done
STEPS, BETWEEN, WORKERS = 120, 7, 2  # between two checkpoints
Handle = Any  # what saves and loads the state of a compressor
Optimizer = torch.optim.Optimizer


def by_compress(net: nn.Module, optimizer: Optimizer, **knobs: Any) -> tuple[nn.Module, Handle]:
    model = DistributedDataParallel(net)
    return model, gcbench.compress(model, **knobs)


def by_overlap(net: nn.Module, optimizer: Optimizer, **knobs: Any) -> tuple[nn.Module, Handle]:
    model = DistributedDataParallel(net, bucket_cap_mb=0.001)
    return model, gcbench.compress(model, overlap=True, **knobs)


def by_hook(net: nn.Module, optimizer: Optimizer, **knobs: Any) -> tuple[nn.Module, Handle]:
    model = DistributedDataParallel(net)
    state, hook = gcbench.comm_hook(**knobs)
    model.register_comm_hook(state, hook)
    return model, state


def by_local_steps(net: nn.Module, optimizer: Optimizer, **knobs: Any) -> tuple[nn.Module, Handle]:
    return net, gcbench.local_steps(net, optimizer, every=4, **knobs)


def by_late_steps(net: nn.Module, optimizer: Optimizer, **knobs: Any) -> tuple[nn.Module, Handle]:
    late: dict[str, Any] = {"fragments": 2, "pattern": "strided", "delay": 1, "mixing": 0.5}
    return net, gcbench.local_steps(net, optimizer, every=4, **late, **knobs)


HANDLES: dict[str, Callable[..., tuple[nn.Module, Handle]]] = {
    "compress": by_compress,
    "overlap": by_overlap,
    "comm_hook": by_hook,
    "local_steps": by_local_steps,
    "late_steps": by_late_steps,
}


def main(typed: Sequence[str]) -> None:
    """Train in processes of their own: `typed` is one of HANDLES, and keys of a method."""
    try:
        run_processes(_train, (typed[0], read_knobs(typed[1:]), Path("run").resolve()), WORKERS)
    except WorkerFailed as error:
        if not error.reason.startswith("ConfigError"):
            print(error.traceback_text, file=sys.stderr)
        sys.exit(f"worker {error.rank} failed: {error.reason}")
    except Interrupted:
        sys.exit(130)


def _train(handle: str, knobs: dict[str, Any], folder: Path) -> None:
    rank = int(os.environ["RANK"])
    place = f"file://{os.environ[MEETING_FILE]}"
    dist.init_process_group("gloo", place, timedelta(seconds=60), WORKERS, rank)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    model, compression = HANDLES[handle](net, optimizer, codec_backend="eager", **knobs)
    checkpoint, begin = folder / "state.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        begin = saved["step"]
        net.load_state_dict(saved["models"][rank])
        optimizer.load_state_dict(saved["optimizers"][rank])
        compression.load_state_dict(saved["compression"])
    for step in range(begin, STEPS):
        draws = torch.Generator().manual_seed(WORKERS * step + rank)
        x = torch.randn(16, 32, generator=draws)
        (model(x) - x[:, :8].sin()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % BETWEEN == 0:
            _save(checkpoint, step + 1, net, optimizer, compression)
    _save(folder / END_OF_LOOP, STEPS, net, optimizer, compression)
    dist.destroy_process_group()


def _save(path: Path, step: int, net: nn.Module, optimizer: Optimizer, compression: Handle) -> None:
    """Write the state of all workers; the file is whole or not there."""
    own = net.state_dict(), optimizer.state_dict()
    of_all: list[Any] = [None] * WORKERS
    dist.all_gather_object(of_all, own)
    state = compression.state_dict(gather_to=0)
    if dist.get_rank() == 0:
        models, optimizers = zip(*of_all, strict=True)
        content = {"models": models, "optimizers": optimizers, "compression": state, "step": step}
        path.parent.mkdir(exist_ok=True)
        torch.save(content, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
