"""A worker's own state, of those that were saved in the last format or by other workers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import Any

import torch.distributed as dist

from gcbench.core.compressor import Goal, State
from gcbench.core.errors import ConfigError
from gcbench.core.library.exchange import ExchangeResult, Kept
from gcbench.core.library.saved import (
    merge_parts,
    merge_totals,
    replaced_shares,
    shared_part,
    unmergeable_reason,
    worker_part,
)
from gcbench.core.library.states import (
    ADVICE,
    FORMAT,
    by_name,
    not_a_state,
    read_part,
    refuse_other_identity,
    refuse_other_traffic,
)
from gcbench.core.reasons import in_one_line


def own_state(
    saved: Any, identity: Mapping[str, Any], name: str, merge: bool, obstacle: str
) -> Any:
    """Return this process's part of the states that were gathered from all, or `saved` itself.

    States of another number of workers are merged, if residuals need not be averaged or `merge`.
    `obstacle` says why those of this handle never are; it is empty where they may be.
    """
    if not isinstance(saved, Mapping) or "processes" not in saved:
        return of_this_format(saved)
    states = saved["processes"]
    states = [of_this_format(state) for state in states] if isinstance(states, list) else []
    if len(states) == dist.get_world_size():
        return states[dist.get_rank()]
    numbers = (
        f"the saved states are of {len(states)} processes, and there are {dist.get_world_size()}"
    )
    if not states or obstacle:
        raise ConfigError(f"{numbers}{obstacle and f', and {obstacle}'}; {ADVICE}")
    for worker, state in enumerate(states):
        own = {**identity, "workers": len(states), "worker": worker}
        refuse_other_identity(state, own, name)
        refuse_other_traffic(state)
    shares = replaced_shares(identity["worker"], identity["workers"], len(states))
    theirs = [states[k] for k in shares]
    parts = [by_name(state, "exchanges", {"gradient"})["gradient"] for state in theirs]
    owns = [read_part(part.get("own") if isinstance(part, Mapping) else part) for part in parts]
    totals = theirs[0]["meter"]
    reason = partial(unmergeable_reason, owns[0], totals, identity["parameters"])
    if problem := reason(merge):
        advice = "" if merge or reason(True) else 'type workers="merge" to average them, or '
        raise ConfigError(f"{numbers}, and {problem}; {advice}{ADVICE}")
    try:
        merged = {**parts[0], "own": merge_parts(owns, [*shares.values()])}
        totals = merge_totals([state["meter"] for state in theirs], [*shares.values()])
    except (KeyError, RuntimeError, ValueError) as error:
        raise not_a_state(f"parts that do not fit together ({in_one_line(error)})") from error
    return {**theirs[0], **identity, "exchanges": {"gradient": merged}, "meter": totals}


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
