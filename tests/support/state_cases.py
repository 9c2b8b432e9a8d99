"""States of compressors in users' loops that are saved, damaged and loaded."""

from __future__ import annotations

import argparse
import copy
import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from accumulation_cases import backward
from fsdp_cases import Sharded, mesh
from gloo_pool import Process
from library_cases import Net, gradients, message_of, parameters, tensors_of_state
from local_loop_cases import Loop
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

import gcbench


def ddp_after(
    process: Process, steps: int, name: str, model: nn.Module | None = None, **knobs: Any
) -> tuple[DistributedDataParallel, gcbench.Compression]:
    ddp = DistributedDataParallel(Net() if model is None else model)
    compression = gcbench.compress(ddp, name, **knobs)
    for step in range(steps):
        ddp.zero_grad()
        backward(ddp, process.rank, step)
    return ddp, compression


def go_on_at_different_steps(process: Process) -> dict[str, str]:
    """Return for some methods the error message of a step after only worker 0 loaded a state."""
    seen = {}
    for name in ("none", "qsgd", "powersgd", "ef21"):
        _, saved = ddp_after(process, 2, name)
        ddp, compression = ddp_after(process, 0, name)
        if process.rank == 0:
            compression.load_state_dict(saved.state_dict())
        seen[name] = message_of(lambda ddp=ddp: backward(ddp, process.rank, 2))  # type: ignore[misc]
    return seen


def damages(state: dict[str, Any]) -> dict[str, Any]:
    """Return damaged copies of a state of `powersgd` by what is wrong with them."""
    name = "layers.0.weight"

    def damaged(change: Callable[[Any, Any], None]) -> Any:
        changed = copy.deepcopy(state)
        change(changed, changed["exchanges"]["gradient"]["own"]["state"][0])  # the residuals
        return changed

    def put(key: str, value: Any) -> Any:
        return damaged(lambda whole, residuals: whole.__setitem__(key, value))

    def put_tensor(value: Any) -> Any:
        return damaged(lambda whole, residuals: residuals.__setitem__(name, value))

    def put_in(part: str, key: str, value: Any) -> Any:
        return damaged(
            lambda whole, residuals: whole["exchanges"]["gradient"][part].__setitem__(key, value)
        )

    residual = state["exchanges"]["gradient"]["own"]["state"][0][name]
    return {
        **{
            f"no {key}": {k: v for k, v in state.items() if k != key}
            for key in state
            if key != "name"  # which earlier states do not have; it is only shown
        },
        "text": "state",
        "format": put("format", 3),
        "exchanges": put_in("shared", "exchanges", "3"),
        "negative": put_in("shared", "exchanges", -1),
        "truth": put_in("shared", "exchanges", True),
        "other part": put("exchanges", {"0": 3}),
        "no parts": put("exchanges", {"gradient": 7}),
        "part": put("exchanges", {"gradient": {"shared": 7, "own": 7}}),
        "state": put_in("own", "state", 7),
        "fewer layers": put_in("own", "state", []),
        "late": put_in("shared", "late", 7),
        "late alone": put_in("shared", "late", {"update": {name: residual}}),
        "of the last format": {
            **{key: value for key, value in state.items() if key != "format"},
            "states": {"gradient": 7},
        },
        "meter": put("meter", [("all", "all_reduce", 2)]),
        "negative bits": put("meter", [(("all", "all_reduce", 2), (1, -8, 8))]),
        "buckets": put("buckets", 7),
        "other names": put("buckets", [["layers.0.weight"]]),
        "layer": damaged(lambda whole, residuals: residuals.pop(name)),
        "foreign layer": damaged(lambda whole, residuals: residuals.update(other=residual)),
        "shape": put_tensor(residual[:1]),
        "transposed": put_tensor(residual.mT.contiguous()),
        "dtype": put_tensor(residual.double()),
        "nan": put_tensor(residual * torch.nan),
        "value": put_tensor(0.0),
    }


def load_damaged(process: Process) -> tuple[dict[str, str], bool]:
    """Return the error messages for damaged states, and whether the state was left as it was."""
    _, compression = ddp_after(process, 3, "powersgd", rank=1)
    _, other = ddp_after(process, 2, "powersgd", rank=1)
    state = other.state_dict()
    before, tensors = copy.deepcopy(compression.state_dict()), tensors_of_state(compression)
    sentences = {
        case: message_of(lambda damaged=damaged: compression.load_state_dict(damaged))  # type: ignore[misc]
        for case, damaged in damages(state).items()
    }
    after, same = compression.state_dict(), tensors_of_state(compression)
    before.pop("exchanges"), after.pop("exchanges")
    kept = all(a is b for a, b in zip(tensors, same, strict=True)) and len(tensors) > 2
    return sentences, before == after and kept


def load_after_each_step(
    process: Process, choices: dict[str, dict[str, Any]]
) -> dict[str, list[str]]:
    """Return the error messages for states of each method after 0 to 3 steps, of which none is."""
    seen: dict[str, list[str]] = {}
    for name, knobs in choices.items():
        ddp, compression = ddp_after(process, 0, name, **knobs)
        _, fresh = ddp_after(process, 0, name, **knobs)
        seen[name] = []
        for step in range(4):
            state = compression.state_dict()
            seen[name].append(message_of(lambda s=state, f=fresh: f.load_state_dict(s)))  # type: ignore[misc]
            backward(ddp, process.rank, step)
            ddp.zero_grad()
    return seen


def load_across_compile(process: Process) -> list[tuple[str, bool]]:
    """Return the messages for states saved with torch.compile and loaded without, and reverse.

    With each comes whether the next update is the same.
    """

    def part() -> nn.Module:
        model = Net()
        model.layers[0] = torch.compile(model.layers[0], backend="eager")  # type: ignore[call-overload]
        return model

    def whole() -> nn.Module:
        return torch.compile(Net(), backend="eager")  # type: ignore[return-value]

    seen = []
    for save, load in ((whole, Net), (Net, whole), (part, Net)):
        saved, compression = ddp_after(process, 2, "powersgd", save(), rank=1)
        loaded, fresh = ddp_after(process, 0, "powersgd", load(), rank=1)
        state = compression.state_dict()
        sentence = message_of(lambda s=state, f=fresh: f.load_state_dict(s))  # type: ignore[misc]
        for ddp in (saved, loaded):
            ddp.zero_grad()
            backward(ddp, process.rank, 3)
        pairs = zip(gradients(saved), gradients(loaded), strict=True)
        seen.append((sentence, all(torch.equal(a, b) for a, b in pairs)))
    return seen


def save_with_a_handle(process: Process) -> tuple[list[Any], list[str]]:
    """Return the handles in a saved and in a copied object, and the warnings."""
    ddp, compression = ddp_after(process, 1, "powersgd")
    args = argparse.Namespace(lr=0.1, compression=compression)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        file = io.BytesIO()
        torch.save({"args": args, "model": ddp}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)["args"]
        copied = copy.deepcopy(args)
    messages = [str(one.message) for one in caught if "gcbench" in str(one.message)]
    return [loaded.compression, copied.compression], messages


def save_sharded(process: Process, nodes: int, name: str) -> tuple[Any, dict[str, Any]]:
    """Return what `remembered_of_shards` does after three steps, and on the first the states."""
    ours, handle = _sharded(nodes, name)
    for step in range(3):
        ours.backward(process.rank, step)
    return remembered_of_shards(handle), handle.state_dict(gather_to=0)


def load_sharded(
    process: Process, nodes: int, name: str, saved: Any, workers: str
) -> tuple[str, Any, bool]:
    """Return the message of loading, what is remembered then, and whether a step is finite."""
    ours, handle = _sharded(nodes, name)
    message = message_of(lambda: handle.load_state_dict(saved, workers))
    kept = remembered_of_shards(handle)
    return message, kept, all(x.isfinite().all() for x in ours.backward(process.rank, 3))


def _sharded(nodes: int, name: str) -> tuple[Sharded, Any]:
    """Return a net of 27 hidden values, whose rows no even number of shards divides."""
    ours = Sharded(bool(nodes), hidden=27, nodes=nodes)
    return ours, ours.compress(name, min_size=0, fraction=0.3)


def move_columns(process: Process, saved: Any) -> tuple[str, Any]:
    """Return the message of loading states of columns, and on the first process such states."""
    model: Any = nn.Linear(8, 6, bias=False)
    fully_shard(model, mesh=mesh(between=False), shard_placement_fn=lambda p: Shard(1))
    handle = gcbench.compress(model, "top_k", min_size=0)
    message = message_of(lambda: handle.load_state_dict(saved, "merge")) if saved else ""
    model(torch.ones(2, 8)).sum().backward()
    return message, handle.state_dict(gather_to=0)


def remembered_of_shards(handle: Any) -> dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Return by parameter a worker's tensors without padding, and its part of the shared ones."""
    found: dict[str, Any] = {}
    for kept in handle._kept.values():
        by_name = {k: kept.state.select([k]) for k in kept.shapes}
        if hasattr(kept, "turns"):
            by_name = kept.turns.by_name(kept.state)
        for name, state in by_name.items():
            n = math.prod(handle._identity["parameters"][name])
            own = [x.flatten()[:n] for layer in state.layers() for x in layer.per_worker.values()]
            found[name] = own, [x for layer in state.layers() for x in layer.shared.values()]
    return found


def save_local(process: Process, compressor: str) -> tuple[list[torch.Tensor], Any]:
    """Return a worker's own values between two exchanges, and on the first the states of all."""
    loop = Loop(process.rank, compressor=compressor, min_size=0)
    loop.train(range(6))
    return own_values(loop), loop.local.state_dict(gather_to=0)


def load_local(
    process: Process, compressor: str, saved: Any, workers: str
) -> tuple[str, list[torch.Tensor], bool]:
    """Return the message of loading, a worker's own values, and whether all agree afterwards."""
    loop = Loop(process.rank, compressor=compressor, min_size=0)
    message = message_of(lambda: loop.local.load_state_dict(saved, workers))
    own = own_values(loop)
    loop.train(range(6, 8))  # exchanges in the eighth step
    same = [torch.equal(x, y) for x, y in zip(loop.shared(), parameters(loop.model), strict=True)]
    return message, own, all(same)


def own_values(loop: Loop) -> list[torch.Tensor]:
    """Return parameters, the moments of Adam, and residuals."""
    moments = [x["exp_avg"].clone() for x in loop.optimizer.state.values()]
    kept = loop.local._kept["parameters"].state.per_worker
    return [*parameters(loop.model), *moments, *(x[0].clone() for x in kept.values())]


def load_shards(process: Process, between: bool, case: str) -> str:
    """Return the error message of loading states of shards, one of which is not as the others."""
    ours = Sharded(between)
    compression = ours.compress("top_k", min_size=0)
    states = []
    for step in range(2):
        ours.backward(process.rank, step)
        states.append(copy.deepcopy(compression.state_dict()))
    state = states[-1]
    odd = process.rank == 0
    residuals = state["exchanges"]["0"]["own"]["state"][0]
    if case == "steps" and odd:
        state = states[0]
    if case == "nan" and odd:
        next(iter(residuals.values())).view(-1)[0] = torch.nan  # between nodes, that of a parameter
    if case == "shape":
        residuals["0"] = residuals["0"][1:]
    if case == "resting":
        state["turns"]["0"]["resting"]["0.bias"] = [({}, {"0": torch.zeros(1, 3)})]
        state["turns"]["0"]["used"] = ["0.weight"]
    if case == "turns":
        state["turns"]["0"]["used"] = ["0.wheight"]
    before = tensors_of_state(compression)
    sentence = message_of(lambda: compression.load_state_dict(state))
    after = tensors_of_state(compression)
    assert all(a is b for a, b in zip(before, after, strict=True)) == bool(sentence)
    return sentence


def in_last_format(state: dict[str, Any], fragments: Sequence[Sequence[str]] = ()) -> Any:
    """Return a state as it was saved before states had a format."""
    rest = {key: x for key, x in state.items() if key not in ("format", "exchanges", "meter")}
    steps, states = {}, {}
    for name, parts in state["exchanges"].items():
        layers = [
            (shared, {key: x.unsqueeze(0) for key, x in own.items()})
            for shared, own in zip(parts["shared"]["state"], parts["own"]["state"], strict=True)
        ]
        count = parts["shared"]["exchanges"]
        steps[name], states[name] = count, layers
        if fragments:
            late = parts["shared"]["late"]
            rest["late"] = late["update"] if late else {}
            # The last fragment is the first that is sent.
            steps = {str(k): (count + k) // len(fragments) for k in range(len(fragments))}
            states = {
                str(k): [tuple({n: x[n] for n in names if n in x} for x in pair) for pair in layers]
                for k, names in enumerate(fragments)
            }
    return {**rest, "steps": steps, "states": states, "traffic": [state["meter"]]}


def load_the_last_format(process: Process) -> dict[str, list[bool]]:
    """Return for each kind of handle whether it goes on equally from a state in either format."""

    def ddp() -> tuple[Any, Any, Callable[[range], None], Any]:
        model, handle = ddp_after(process, 0, "powersgd", rank=1)
        return model, handle, partial(_train_ddp, model, process.rank), ()

    def local() -> tuple[Any, Any, Callable[[range], None], Any]:
        knobs = {"every": 4, "fragments": 2, "delay": 1, "compressor": "powersgd", "rank": 1}
        loop = Loop(process.rank, **knobs)
        sizes = {name: p.numel() for name, p in loop.model.named_parameters()}
        return loop.model, loop.local, loop.train, loop.local._rule.cut(sizes)

    def sharded() -> tuple[Any, Any, Callable[[range], None], Any]:
        ours = Sharded()
        handle = ours.compress("top_k", min_size=0)
        return ours.model, handle, partial(_train_sharded, ours, process.rank), ()

    equal: dict[str, list[bool]] = {}
    for begin in (ddp, local, sharded):
        model, handle, train, fragments = begin()
        train(range(6))
        weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(handle.state_dict())
        train(range(6, 9))
        expected = {**dict(model.named_parameters()), **_by_name(handle)}
        equal[begin.__name__] = []
        for saved in (state, in_last_format(state, fragments)):
            model, handle, train, _ = begin()
            model.load_state_dict(weights)
            handle.load_state_dict(saved)
            train(range(6, 9))
            found = {**dict(model.named_parameters()), **_by_name(handle)}
            same = [torch.equal(_local(found[k]), _local(x)) for k, x in expected.items()]
            equal[begin.__name__].append(all(same) and found.keys() == expected.keys())
    return equal


def _by_name(handle: gcbench.Compression) -> dict[str, torch.Tensor]:
    """Return all tensors that a handle remembers, by where they are."""
    return {
        f"{name}/{depth}/{place}/{key}": x
        for name, kept in handle._kept.items()
        for depth, layer in enumerate(kept.state.layers())
        for place, part in enumerate((layer.shared, layer.per_worker))
        for key, x in part.items()
    }


def _local(x: Any) -> torch.Tensor:
    tensor: torch.Tensor = x.to_local() if isinstance(x, DTensor) else x
    return tensor


def _train_ddp(ddp: DistributedDataParallel, rank: int, steps: range) -> None:
    for step in steps:
        ddp.zero_grad()
        backward(ddp, rank, step)
        _descend(ddp)


def _train_sharded(ours: Sharded, rank: int, steps: range) -> None:
    for step in steps:
        ours.backward(rank, step)
        _descend(ours.model)


@torch.no_grad()
def _descend(model: nn.Module) -> None:
    for p in model.parameters():
        p -= 0.1 * p.grad  # type: ignore[operator]


def save_all(process: Process, name: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """Return on the first worker the states of all after three steps."""
    _, compression = ddp_after(process, 3, name, **knobs)
    return compression.state_dict(gather_to=0)


def load_those_of_others(
    process: Process, name: str, knobs: dict[str, Any], saved: Any, workers: str
) -> tuple[str, dict[str, torch.Tensor], int, int]:
    """Return the message of loading, and the residuals, exchanges and bits after it.

    A step is taken then, in which workers agree on how many there were.
    """
    ddp, compression = ddp_after(process, 0, name, **knobs)
    message = message_of(lambda: compression.load_state_dict(saved, workers))
    kept = compression._kept["gradient"]
    residuals = {key: x[0].clone() for key, x in kept.state.per_worker.items()}
    seen = message, residuals, kept.exchanges, compression.bits_sent
    backward(ddp, process.rank, 3)
    return seen
