"""Training loops of users whose workers train alone between exchanges."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
from gloo_pool import Process
from library_cases import Net, batch, message_of, parameters, saved
from pipeline_cases import make_run
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.launch.instantiate import make_data, make_model
from gcbench.seeds import mix
from gcbench.settings.config import RunConfig
from gcbench.train.loop import train_step
from gcbench.train.run import Progress

STEPS = 14


def train_like_runner(
    process: Process, config: RunConfig, knobs: dict[str, Any]
) -> tuple[list[Tensor], int]:
    """Return the shared parameters after STEPS steps, and the bits that this worker sent."""
    data, seed = make_data(config), config.seed
    torch.manual_seed(mix(seed) >> 1)
    model = make_model(config.model, data.shape, data.outputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, foreach=True)
    local = gcbench.local_steps(
        model, optimizer, compressor=config.choices["compressor"], seed=seed, **knobs
    )
    for step in range(STEPS):
        inputs, targets = data.batch(
            epoch=0,
            step=step,
            worker=process.rank,
            workers=2,
            batch_size=config.trainer.batch_size,
            seed=seed,
        )
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    own = parameters(model)
    with local.shared_parameters():
        shared = parameters(model)
    assert all(map(torch.equal, own, parameters(model)))
    local.state_dict()  # waits for an exchange that is under way
    return shared, local.bits_sent


def train_in_run(process: Process, config: RunConfig) -> tuple[list[Tensor], int]:
    """Return what `train_like_runner` returns, of the runner itself."""
    run = make_run(process, config)
    progress = Progress.start(run)
    for _ in range(STEPS):
        train_step(run, progress)
    run.pipeline.settle(run, progress)
    return parameters(run.replica.model), run.comm.meter.sent_bits[0]


class Loop:
    """A net that a worker trains with AdamW."""

    def __init__(self, worker: int, **knobs: Any) -> None:
        self.worker, self.model = worker, Net()
        if worker:  # as if every worker had drawn its own
            nn.init.normal_(self.model.layers[0].weight)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.local = gcbench.local_steps(self.model, self.optimizer, **{"every": 4, **knobs})

    def train(self, steps: range, scale: float = 1.0) -> None:
        for step in steps:
            inputs, targets = batch(self.worker, step)
            self.optimizer.zero_grad()
            (scale * cross_entropy(self.model(inputs), targets)).backward()
            self.optimizer.step()

    def shared(self) -> list[Tensor]:
        with self.local.shared_parameters():
            return parameters(self.model)


def resume(process: Process, knobs: dict[str, Any]) -> dict[str, list[Tensor]]:
    """Train 19 steps without and with a restart after 10, from what one process has written."""
    whole = Loop(process.rank, **knobs)
    whole.train(range(19))
    before = Loop(process.rank, **knobs)
    before.train(range(10))
    checkpoint = [saved(before.local.state_dict(gather_to=1))]
    dist.broadcast_object_list(checkpoint, src=1)
    after = Loop(process.rank, **knobs)
    after.local.load_state_dict(torch.load(io.BytesIO(checkpoint[0])))
    after.train(range(10, 19))
    loops = {"whole": whole, "resumed": after}
    return {
        **{name: loop.shared() for name, loop in loops.items()},
        **{f"{name} own": parameters(loop.model) for name, loop in loops.items()},
        "bits": [torch.tensor([loop.local.bits_sent for loop in loops.values()])],
    }


def handle_of(process: Process) -> dict[str, Any]:
    """Return what a handle says of 8 steps with two exchanges, and the parameters thereafter."""
    loop = Loop(process.rank, compressor="qsgd", min_size=0, error_every=1)
    start = parameters(loop.model)
    loop.train(range(8))
    local = loop.local
    seen = {
        "start": start,
        "together": parameters(loop.model),
        "ratio": local.ratio,
        "bits": local.bits_sent,
        "error": local.error(),
        "text": repr(local),
    }
    loop.train(range(8, 10))
    seen["apart"] = parameters(loop.model)
    local.remove()
    sent = local.bits_sent
    loop.train(range(10, 16))
    return {**seen, "sent after remove": local.bits_sent - sent}


def overflow(process: Process) -> list[Tensor]:
    """Return the parameters after an exchange in which those of worker 1 were not finite."""
    loop = Loop(process.rank, compressor="scaled_sign", error_feedback=True, min_size=0)
    loop.train(range(4), scale=torch.inf if process.rank else 1.0)
    return parameters(loop.model)


def refusal(process: Process, case: str) -> str:
    """Return the error message for a call, or for the training after it."""
    rank, net = process.rank, Net()
    adamw = torch.optim.AdamW(net.parameters(), lr=0.01)
    knobs: dict[str, Any] = {
        "every": {"every": 0},
        "momentum": {"outer_momentum": 0.0},
        "fragments": {"fragments": 9},
        "many fragments": {"every": 2, "fragments": 3},
        "delay": {"delay": 2, "fragments": 2, "every": 4},
        "global": {"compressor": "maxnorm", "fragments": 2},
        "clip_norm": {"compressor": "qsgd", "clip_norm": 1.0},
        "coded momentum": {"compressor": "onebit_adam", "momentum": 0.9, "dense_steps": 2},
        "differ": {"every": 4 + rank},
    }.get(case, {"every": 4})

    def attempt() -> None:
        model: nn.Module = DistributedDataParallel(net) if case == "ddp" else net
        optimizer: Any = torch.optim.SGD(Net().parameters(), 0.1) if case == "other" else adamw
        if case == "optimizer":
            optimizer = adamw.param_groups
        if case == "frozen":
            net.layers[0].weight.requires_grad_(False)
        local = gcbench.local_steps(model, optimizer, **knobs)
        if case == "frozen":
            net.layers[0].weight.requires_grad_(True)
        if case == "states":
            local.load_state_dict({**local.state_dict(), "local steps": rank})
        for step in range(4):
            inputs, targets = batch(rank, step)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return message_of(attempt)
