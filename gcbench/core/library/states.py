"""Checks of saved states before they replace anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import MirrorTransport
from gcbench.core.compressor import Compressor, Goal, Grads, State
from gcbench.core.errors import ConfigError, in_one_line
from gcbench.core.library.agreement import differing
from gcbench.core.library.exchange import ExchangeResult, Kept
from gcbench.core.library.saved import read_parts, shared_part, worker_part
from gcbench.core.parameters import Shape
from gcbench.core.wrappers.virtual import aggregate, dense_steps_of, parts_of

# What learning rate schedules add to an optimizer's groups.
_OF_SCHEDULES = {*"params initial_lr max_lr min_lr max_momentum base_momentum".split()}
FORMAT = 2


class StateError(ConfigError):
    """A saved state is not one of this model and compressor; nothing was replaced."""


def refuse_other_identity(saved: Any, expected: Mapping[str, Any], name: str) -> None:
    """Raise StateError if a saved state is not that of this worker, model and compressor.

    `name` is what was typed for the compressor.
    """
    if not isinstance(saved, Mapping):
        raise ConfigError(
            f"a {type(saved).__name__} is no saved state; type load_state_dict with what "
            "state_dict returned"
        )
    if "format" in saved and saved["format"] != FORMAT:
        raise not_a_state(f"format={saved['format']!r:.20}, and this gcbench reads {FORMAT}")
    for key, own in {"format": FORMAT, **expected}.items():
        if key not in saved:
            raise not_a_state(f"no {key}")
        if saved[key] != own:
            theirs, ours = differing(saved[key], own)
            if key == "compressor" and saved.get("name", name) != name:
                theirs, ours = str(saved["name"]), name
            raise not_a_state(f"{key}={theirs}, and this compression has {ours}")


def by_name(saved: Mapping[str, Any], key: str, names: Collection[str]) -> Mapping[str, Any]:
    """Return what was saved under `key`. Raises StateError unless it has values for `names`."""
    values = saved.get(key)
    if not isinstance(values, Mapping):
        raise not_a_state(f"no {key}" if values is None else f"{key}={values!r:.60}")
    if set(values) != set(names):
        theirs, ours = (", ".join(map(repr, map(str, x))) for x in (values, names))
        raise not_a_state(f"{key} of {theirs}, and this compression of {ours}")
    return values


def read_kept(kept: Kept, saved: Any, device: torch.device) -> Kept:
    """Return `kept` with the parts that were saved, on `device`. Raises StateError for others."""
    if not isinstance(saved, Mapping) or {*saved} != {"shared", "own"}:
        raise not_a_state(f"exchanges={saved!r:.60}")
    shared = saved["shared"]
    of_all, of_worker = read_part(shared, device), read_part(saved["own"], device)
    exchanges = shared.get("exchanges")
    if type(exchanges) is not int or exchanges < 0:
        raise not_a_state(f"exchanges={exchanges!r:.60}")
    if len(of_all["state"]) != len(of_worker["state"]):
        raise not_a_state("as many layers for all workers as for one")
    try:
        return read_parts(kept, {**of_all, "exchanges": exchanges}, [of_worker])
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise not_a_state(f"late={shared['late']!r:.60}") from error


def read_part(saved: Any, device: torch.device | None = None) -> dict[str, Any]:
    """Return a part with its tensors on `device`. Raises StateError unless they are finite."""
    layers = saved.get("state") if isinstance(saved, Mapping) else saved
    if not isinstance(layers, list):
        raise not_a_state(f"state={layers!r:.60}")
    layers = [read_tensors(layer, device) for layer in layers]
    return {"state": layers, "late": _read_late(saved.get("late"), device)}


def _read_late(saved: Any, device: torch.device | None) -> dict[str, Any] | None:
    """Return copies of what is late in a part, into which an optimizer may write."""
    if saved is None:
        return None
    if not isinstance(saved, Mapping):
        raise not_a_state(f"late={saved!r:.60}")
    late: dict[str, Any] = {}
    for name, x in saved.items():
        found = read_tensors({name: x} if isinstance(x, Tensor) else x, device)
        copied = {key: tensor.clone() for key, tensor in found.items()}
        late[name] = copied[name] if isinstance(x, Tensor) else copied
    return late


def to_plain(state: State) -> list[tuple[Grads, Grads]]:
    """Return the tensors of a state without classes of gcbench, for `torch.save`."""
    return [(layer.shared, layer.per_worker) for layer in state.layers()]


def read_state(saved: Any, device: torch.device) -> State:
    """Return a saved state with its tensors on `device`.

    Raises:
        StateError: if it does not consist of finite tensors by name.
    """
    pairs = isinstance(saved, list) and all(
        isinstance(layer, (tuple, list)) and len(layer) == 2 for layer in saved
    )
    if not pairs:
        raise not_a_state(f"states={saved!r:.60}")
    return State.of_layers(
        [(read_tensors(shared, device), read_tensors(own, device)) for shared, own in saved]
    )


def read_tensors(saved: Any, device: torch.device | None) -> Grads:
    """Return tensors by name on `device`. Raises StateError unless they are, and finite."""
    if not isinstance(saved, Mapping):
        raise not_a_state(f"{saved!r:.60} in place of tensors by name")
    for name, x in saved.items():
        if not isinstance(x, Tensor):
            raise not_a_state(f"{x!r:.60} for {name}")
        refuse_not_finite(name, x)
    return {str(name): x.to(device) for name, x in saved.items()}


def refuse_other_values(
    key: str,
    saved: Any,
    own: Mapping[str, Any],
    finite: Collection[str] | None = None,
    some: bool = False,
) -> None:
    """Raise StateError unless `saved` has tensors like those of `own`, or of `some` of them.

    They are finite, or those with the names `finite` are.
    """
    if not isinstance(saved, Mapping):
        raise not_a_state(f"{key}={saved!r:.60}")
    for name in saved if some else {**own, **saved}:
        theirs, ours = saved.get(name), own.get(name)
        if name in own and type(theirs) is type(ours) and not isinstance(theirs, Tensor):
            continue  # what a module adds to its state
        a, b = (
            _describe(x) if x is None or isinstance(x, Tensor) else repr(x) for x in (theirs, ours)
        )
        if a != b:
            raise not_a_state(f"{a:.60} for {name} under {key}, and this model has {b:.60}")
        if finite is None or name in finite:
            refuse_not_finite(f"{name} under {key}", theirs)


def refuse_other_late(kept: Kept, parameters: Mapping[str, Tensor]) -> None:
    """Raise StateError unless what is late is an update of some of the parameters."""
    if kept.late is not None:
        like = {
            name: torch.empty(1, *p.shape, dtype=torch.float32, device="meta")
            for name, p in parameters.items()
        }
        refuse_other_values("late", kept.late.update, like, some=True)


def refuse_other_optimizer(key: str, saved: Any, optimizer: Optimizer) -> None:
    """Raise StateError unless `saved` has the form of this optimizer's state."""
    own = optimizer.state_dict()
    if not isinstance(saved, Mapping) or set(saved) != set(own):
        raise not_a_state(f"{key}={saved!r:.60}")
    if "param_groups" in own:
        groups = saved["param_groups"]
        if not isinstance(groups, list) or len(groups) != len(own["param_groups"]):
            raise not_a_state(f"param_groups={groups!r:.60} under {key}")
        for group, ours in zip(groups, own["param_groups"], strict=True):
            known, keys = set(optimizer.defaults), set(group) - _OF_SCHEDULES
            # Another version of PyTorch may have more of them, or fewer.
            if not (keys <= known or keys >= known) or len(group["params"]) != len(ours["params"]):
                raise not_a_state(f"another optimizer's groups than {type(optimizer).__name__}'s")
    for values in (saved.get("state") or {}).values():
        for name, x in values.items() if isinstance(values, Mapping) else ():
            refuse_not_finite(f"{name} under {key}", x)


def refuse_not_finite(name: str, x: Any) -> None:
    """Raise StateError for a saved tensor with NaN or infinities."""
    if isinstance(x, Tensor) and x.is_floating_point() and not x.isfinite().all():
        raise not_a_state(f"values for {name} that are not finite")


def refuse_other_traffic(saved: Mapping[str, Any]) -> None:
    """Raise StateError unless a state has the totals of this worker's meter."""
    totals: Any = saved.get("meter")
    try:
        counts = [(workers, *total) for (_, _, workers), total in totals]
        if all(len(n) == 4 and all(type(x) is int and x >= 0 for x in n) for n in counts):
            return
    except (TypeError, ValueError):
        pass
    raise not_a_state(f"meter={totals!r:.60}")


def not_a_state(what: str) -> StateError:
    return StateError(f"the saved state has {what}")


def refuse_other_states(
    compressor: Compressor,
    comm: Comm,
    shapes: Mapping[str, Shape],
    states: Sequence[State],
    device: torch.device,
) -> None:
    """Raise StateError unless workers' `states` have such tensors as the compressor keeps.

    It keeps them of gradients of these shapes, which are exchanged together.
    """
    rows = {
        name: torch.zeros(1, *shape, dtype=torch.float32, device=device)
        for name, shape in shapes.items()
    }
    of_turns = states_of(compressor, rows, comm)
    for state in states:
        if fewest := min((_differences(state, own) for own in of_turns), key=len):
            raise not_a_state(fewest[0])


def states_of(compressor: Compressor, rows: Grads, comm: Comm) -> list[State]:
    """Return a worker's states after first steps of zeros, as many as messages take turns.

    They come after any warm-up, and nothing is sent in them.
    """
    alone = Comm(
        comm.workers,
        MirrorTransport(comm.local.start, comm.workers),
        workers_per_host=comm.workers_per_host,
    )
    first = dense_steps_of(compressor)
    parts = [part for part in parts_of(compressor) if isinstance(part, Compressor)]
    turns = max(part.properties.turns for part in parts)
    device = next(iter(rows.values())).device
    states = [State()]
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for number in range(first, first + turns):
            out = aggregate(compressor, rows, number=number, state=states[-1], comm=alone)
            states.append(out.state)
    return states[1:]


def _differences(state: State, own: State) -> list[str]:
    """Return how tensors differ, except where there are none yet, as before the first step."""
    found = []
    for saved_layer, own_layer in zip_longest(state.layers(), own.layers(), fillvalue=State()):
        for saved, kept in (
            (saved_layer.shared, own_layer.shared),
            (saved_layer.per_worker, own_layer.per_worker),
        ):
            for name in {**saved, **kept} if saved else ():
                a, b = (_describe(tensors.get(name)) for tensors in (saved, kept))
                if a != b:
                    found.append(f"{a} for {name}, and this compression has {b}")
    return found


def _describe(x: Tensor | None) -> str:
    if x is None:
        return "nothing"
    return f"{str(x.dtype).removeprefix('torch.')} values of shape {tuple(x.shape)}"


def of_this_format(saved: Any) -> Any:
    """Return a saved state in this format, if it has the last one, which had no number.

    There, a state's layers were pairs of tensors that all share and of the worker's own.
    """
    if not isinstance(saved, Mapping) or "states" not in saved or "format" in saved:
        return saved
    rest = {key: saved[key] for key in saved if key not in ("steps", "states", "traffic", "late")}
    try:
        (totals,) = saved["traffic"]  # of the one worker in a process
        kept = {
            name: Kept(0, exchanges=saved["steps"][name], state=State.of_layers(layers))
            for name, layers in saved["states"].items()
        }
        if "late" in saved:  # of local steps, which kept each fragment by itself
            whole = reduce(State.replace, (part.state for part in kept.values()))
            total = sum(part.exchanges for part in kept.values())
            kept = {"parameters": Kept(0, exchanges=total, state=whole, late=_late_of(saved))}
        parts = {
            name: {"shared": shared_part(part), "own": worker_part(part, 0)}
            for name, part in kept.items()
        }
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise not_a_state(f"no whole state of the last format ({in_one_line(error)})") from error
    return {**rest, "format": FORMAT, "exchanges": parts, "meter": totals}


def _late_of(saved: Mapping[str, Any]) -> ExchangeResult | None:
    """Return an update that is still to be applied, in the shapes of parameters."""
    late = {k: x.view(1, *saved["shared"][k].shape) for k, x in saved["late"].items()}
    # What was to be coded was measured when it was sent, and is not needed any more.
    return ExchangeResult(late, lambda: Goal(late, late), None) if late else None
