"""Training loops of users whose workers train alone between exchanges."""

from __future__ import annotations

import copy
import io
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from gloo_pool import Process
from library_cases import Net, batch, message_of, parameters, saved
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.comm.transport import group_beside, timeout_of


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


def bits_under_way(process: Process) -> list[int]:
    """Return the bits of a handle while an exchange is under way, and after it has arrived."""
    loop = Loop(process.rank, compressor="qsgd", min_size=0, delay=1)
    loop.train(range(4))
    for future, _ in loop.local._exchange._under_way:
        future.result()
    seen = [loop.local.bits_sent]
    loop.train(range(4, 5))
    return [*seen, loop.local.bits_sent]


class SlowWeights(torch.optim.Optimizer):
    """An optimizer that steps another one, and then moves parameters back by a part."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.defaults = inner, inner.defaults
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step(closure)
        own = [p for group in self.param_groups for p in group["params"]]
        for p, slow in zip(own, self.slow, strict=True):
            slow.lerp_(p, 0.5)
            p.copy_(slow)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "slow": self.slow}

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict["inner"])
        self.slow = state_dict["slow"]


class Skipping(SlowWeights):
    """An optimizer that steps another one in every second call, as trainers' proxies do."""

    calls = 0

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            self.inner.step(closure)


def with_optimizers(process: Process, kind: str) -> dict[str, list[Tensor]]:
    """Return parameters after an exchange in the third step of some optimizers, and later.

    `expected` are those after three steps of one optimizer that does all they do.
    """

    def begin(kind: str) -> tuple[Net, list[torch.optim.Optimizer], gcbench.Compression]:
        net = Net()
        matrices = [p for p in net.parameters() if p.dim() == 2]
        rest = [p for p in net.parameters() if p.dim() < 2]
        if kind == "one":
            parts = [{"params": matrices}, {"params": rest}]
            given: Any = [torch.optim.SGD(parts, 0.1, momentum=0.9)]
        else:
            given = [torch.optim.SGD(part, 0.1, momentum=0.9) for part in (matrices, rest)]
        wrapper = {"wrapped": SlowWeights, "skipping": Skipping}.get(kind)
        given = [wrapper(optimizer) for optimizer in given] if wrapper else given
        local = gcbench.local_steps(net, given, every=3)
        for optimizer in given:  # which wraps its step() once more
            torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        return net, given, local

    def train(net: Net, given: list[torch.optim.Optimizer], steps: range) -> list[Tensor]:
        for step in steps:
            inputs, targets = batch(process.rank, step)
            cross_entropy(net(inputs), targets).backward()
            for optimizer in given * (1 + isinstance(given[0], Skipping)):
                optimizer.step()
            net.zero_grad()
        return parameters(net)

    net, given, local = begin(kind)
    seen = {"together": train(net, given, range(3)), "apart": train(net, given, range(3, 5))}
    state = saved(local.state_dict())
    seen["last"] = train(net, given, range(5, 7))
    net, given, local = begin(kind)
    local.load_state_dict(torch.load(io.BytesIO(state)))
    seen["resumed"] = train(net, given, range(5, 7))
    net, given, _ = begin("one")
    return {**seen, "expected": train(net, given, range(3))}


def change_shared(process: Process, how: str) -> tuple[str, bool]:
    """Return the message for a change within shared_parameters(), and whether none remains."""
    loop = Loop(process.rank)
    loop.train(range(5))
    before = [*loop.shared(), *parameters(loop.model)]

    def attempt() -> None:
        with loop.local.shared_parameters():
            if how == "step":
                loop.train(range(5, 6))
            if how == "load":
                loop.model.load_state_dict(Net().state_dict())
            if how == "by hand":
                torch.nn.init.zeros_(loop.model.layers[0].weight)

    message = message_of(attempt)
    return message, all(map(torch.equal, before, [*loop.shared(), *parameters(loop.model)]))


def spoilt_states(process: Process) -> dict[str, tuple[str, bool]]:
    """Return the message for each state that does not fit, and whether it replaced nothing."""
    loop = Loop(process.rank, delay=1)
    loop.train(range(4))
    good, name = loop.local.state_dict(), "layers.0.weight"
    update, nan = torch.zeros(1, 24, 12), torch.nan

    def late(state: Any) -> Any:
        return state["exchanges"]["parameters"]["shared"]["late"]

    spoils: dict[str, Any] = {
        "steps as text": lambda s: s.update({"local steps": "x"}),
        "negative steps": lambda s: s.update({"local steps": -3}),
        "no steps": lambda s: s.update({"local steps": None}),
        "shape": lambda s: s["shared"].update({name: torch.zeros(1)}),
        "type": lambda s: s["shared"].update({name: s["shared"][name].double()}),
        "shared NaN": lambda s: s["shared"][name].fill_(nan),
        "missing": lambda s: s["shared"].pop(name),
        "another": lambda s: s["shared"].update(other=torch.zeros(1)),
        "no tensors": lambda s: s.update(shared=[1]),
        "model NaN": lambda s: s["model"][name].fill_(nan),
        "model's names": lambda s: s["model"].pop(name),
        "late NaN": lambda s: late(s)["update"].update({name: update + nan}),
        "late shape": lambda s: late(s)["update"].update({name: update[0]}),
        "outer of AdamW": lambda s: s.update(outer=s["optimizer"][0]),
        "optimizer of SGD": lambda s: s.update(optimizer=[s["outer"]]),
        "no optimizer": lambda s: s.update(optimizer=None),
        "two optimizers": lambda s: s["optimizer"].append(s["optimizer"][0]),
        "moments NaN": lambda s: s["optimizer"][0]["state"][0]["exp_avg"].fill_(nan),
    }
    fresh, seen = Loop(process.rank, delay=1), {}
    before = [*fresh.shared(), *parameters(fresh.model)]
    for case, spoil in spoils.items():
        state = copy.deepcopy(good)
        spoil(state)
        message = message_of(lambda state=state: fresh.local.load_state_dict(state))  # type: ignore[misc]
        now = [*fresh.shared(), *parameters(fresh.model)]
        seen[case] = message, all(map(torch.equal, before, now)) and fresh.local._steps == 0
    return seen


def load_across_compile(process: Process) -> list[bool]:
    """Return whether training goes on equally where torch.compile wrapped only one model."""

    def begin(compiled: bool, state: Any = None) -> tuple[nn.Module, gcbench.Compression]:
        net = Net()
        model: Any = torch.compile(net, backend="eager") if compiled else net
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        local = gcbench.local_steps(model, optimizer, every=2)
        if state:
            local.load_state_dict(state)
        for step in range(3):
            inputs, targets = batch(process.rank, step)
            cross_entropy(net(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, local

    equal = []
    for compiled in (True, False):
        state = begin(compiled)[1].state_dict()
        same, other = (parameters(begin(again, state)[0]) for again in (compiled, not compiled))
        equal.append(all(map(torch.equal, same, other)))
    return equal


def load_alone(process: Process) -> str:
    """Return what is said of a state where the message of another worker never comes."""
    loop = Loop(process.rank)
    state = loop.local.state_dict()

    def wait(value: Any) -> Any:
        raise RuntimeError("Timed out waiting 6000ms for recv operation to complete")

    loop.local._gather = wait  # type: ignore[method-assign]
    return message_of(lambda: loop.local.load_state_dict(state))


def timeouts(process: Process) -> list[float]:
    """Return the timeouts of a DDP's group, and of those that an overlap and a delay take."""
    short = group_beside(process.world, timeout=timedelta(seconds=77))
    ddp = DistributedDataParallel(Net(), process_group=short)
    overlapped, local = (
        gcbench.compress(ddp, "qsgd", overlap=True),
        Loop(process.rank, delay=1).local,
    )
    seen = [timeout_of(group).total_seconds() for group in (short, overlapped._exchange.group)]
    seen.append((timeout_of(local._exchange.group) - timeout_of(process.world)).total_seconds())
    local.remove()
    overlapped.remove()
    return seen


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
        "other delay": {"every": 4, "delay": rank},
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
        if case == "left out":
            optimizer = torch.optim.SGD([net.layers[0].weight], 0.1)
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
