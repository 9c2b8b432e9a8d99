"""States as they were saved before they had the number of a format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from gcbench.core.compressor import Goal, State
from gcbench.core.library.exchange import ExchangeResult, Kept
from gcbench.core.library.saved import shared_part, worker_part
from gcbench.core.library.states import FORMAT, not_a_state
from gcbench.core.reasons import in_one_line


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
