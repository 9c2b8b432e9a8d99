"""States of compressors in users' loops that are saved, damaged and loaded."""

from __future__ import annotations

import argparse
import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from accumulation_cases import backward
from fsdp_cases import Sharded
from gloo_pool import Process
from library_cases import Net, gradients, message_of, tensors_of_state
from torch import nn
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
        change(changed, changed["states"]["gradient"][0][1])  # the residuals
        return changed

    def put(key: str, value: Any) -> Any:
        return damaged(lambda whole, residuals: whole.__setitem__(key, value))

    def put_tensor(value: Any) -> Any:
        return damaged(lambda whole, residuals: residuals.__setitem__(name, value))

    residual = state["states"]["gradient"][0][1][name]
    return {
        **{
            f"no {key}": {k: v for k, v in state.items() if k != key}
            for key in state
            if key != "name"  # which earlier states do not have; it is only shown
        },
        "text": "state",
        "steps": put("steps", {"gradient": "3"}),
        "negative": put("steps", {"gradient": -1}),
        "truth": put("steps", {"gradient": True}),
        "other part": put("steps", {"0": 3}),
        "states": put("states", {"gradient": 7}),
        "traffic": put("traffic", [[("all", "all_reduce", 2)]]),
        "negative bits": put("traffic", [[(("all", "all_reduce", 2), (1, -8, 8))]]),
        "buckets": put("buckets", 7),
        "other names": put("buckets", [["layers.0.weight"]]),
        "layer": damaged(lambda whole, residuals: residuals.pop(name)),
        "foreign layer": damaged(lambda whole, residuals: residuals.update(other=residual)),
        "shape": put_tensor(residual[:, :1]),
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
    before = copy.deepcopy(compression.state_dict())
    sentences = {
        case: message_of(lambda damaged=damaged: compression.load_state_dict(damaged))  # type: ignore[misc]
        for case, damaged in damages(state).items()
    }
    after = compression.state_dict()
    tensors = [
        torch.equal(a, b)
        for x, y in zip(
            before.pop("states")["gradient"], after.pop("states")["gradient"], strict=True
        )
        for one, other_one in zip(x, y, strict=True)
        for a, b in zip(one.values(), other_one.values(), strict=True)
    ]
    return sentences, before == after and all(tensors) and len(tensors) > 2


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
    (_, residuals), *_ = state["states"]["0"]
    if case == "steps" and odd:
        state = states[0]
    if case == "nan" and odd:
        next(iter(residuals.values()))[0, 0] = torch.nan  # between nodes, that of a parameter
    if case == "shape":
        residuals["0"] = residuals["0"][:, 1:]
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
