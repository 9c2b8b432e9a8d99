"""result.json: what a run was, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from gcbench.records.environment import checked_out, environment

SCHEMA_VERSION = 1
BETTER_HIGH = {"accuracy", "top5_accuracy"}


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def bits(
    per_worker: Sequence[float], steps: int, steps_per_epoch: int, dense: float
) -> dict[str, float | None]:
    """Of every worker over the whole run; `ratio` is against fp32 gradients, which take `dense` bits in a step."""
    mean = sum(per_worker) / len(per_worker)
    per_step = mean / max(steps, 1)
    return {
        "per_worker": mean,
        "per_worker_max": max(per_worker),
        "per_step": per_step,
        "per_epoch_mib": per_step * steps_per_epoch / 8 / 2**20,
        "dense_per_step": dense,
        "ratio": dense / per_step if per_step else None,
    }


def bits_between_nodes(
    per_node: Sequence[float], steps: int, dense: float
) -> dict[str, float | None]:
    """What all workers of a node together send to other nodes; `ratio` is against one fp32 gradient a node."""
    mean = sum(per_node) / len(per_node)
    per_step = mean / max(steps, 1)
    return {"per_node": mean, "per_step": per_step, "ratio": dense / per_step if per_step else None}


def test_scores(tests: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """The last value of every score, and the best beside it."""
    if not tests:
        return None
    names = [k for k in tests[-1] if k not in ("event", "step", "epoch")]
    last = {name: tests[-1][name] for name in names}
    best = {
        f"best_{name}": (max if name in BETTER_HIGH else min)(test[name] for test in tests)
        for name in names
    }
    return {**last, **best}


class Begun(NamedTuple):
    """What is known of a run when it starts."""

    started: str  # now, whether it begins or continues
    git: dict[
        str, Any
    ]  # of its first start; `dirty`: at any start; `later_commits`: others with which it was continued
    extended: list[
        dict[str, float]
    ]  # `from_step` and `from_epoch`: where shorter runs had ended that became this one

    @staticmethod
    def here(
        before: dict[str, Any] | None = None, extended: dict[str, float] | None = None
    ) -> Begun:
        """`before`: what an earlier start of the run wrote; `extended`: where the run ended that is extended now."""
        git, before = checked_out(), before or {}
        if first := before.get("git"):
            others = [
                *first.get("later_commits", []),
                *([git["commit"]] if git["commit"] != first["commit"] else []),
            ]
            later = {"later_commits": list(dict.fromkeys(others))} if others else {}
            git = {**first, "dirty": first["dirty"] or git["dirty"], **later}
        return Begun(now(), git, [*before.get("extended", []), *([extended] if extended else [])])


def unfinished(config: dict[str, Any], status: str, reason: str, begun: Begun) -> dict[str, Any]:
    """The result of a run whose workers could write none."""
    return {
        "schema_version": SCHEMA_VERSION,
        "status": status,
        "reason": reason,
        "experiment": config["experiment"],
        "choices": config["choices"],
        "config": {k: v for k, v in config.items() if k not in ("choices", "experiment")},
        "extended": begun.extended,
        **environment(begun.git),
        "started": begun.started,
        "finished": now(),
    }
