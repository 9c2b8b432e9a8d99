"""The result of a run, put together from what all processes counted."""

from __future__ import annotations

from typing import Any

from gcbench.config import Config
from gcbench.launch.plan import Plan
from gcbench.records.environment import environment
from gcbench.records.result import SCHEMA_VERSION, bits, now, test_scores
from gcbench.train.run import Progress, Run

CODEC_BACKEND = "eager"


def outcome(
    config: Config, plan: Plan, run: Run, progress: Progress, status: str, reason: str | None, started: str
) -> dict[str, Any]:
    """result.json as a dictionary; every process calls it."""
    meters = run.control.gather((run.comm.meter.sent_bits, run.comm.meter.received_bits))
    sent = [b for part, _ in meters for b in part]
    received = [b for _, part in meters for b in part]
    counts = (progress.step, run.steps_per_epoch, run.replica.numel)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": status,
        "reason": reason,
        "choices": config["choices"],
        "config": {k: v for k, v in config.items() if k != "choices"},
        "workers": plan.workers,
        "processes": plan.processes,
        "launcher": plan.launcher,
        "device": plan.device,
        "backend": plan.backend,
        "codec_backend": CODEC_BACKEND,
        "threads": plan.threads,
        "oversubscribed": plan.oversubscribed,
        "parameters": run.replica.numel,
        "steps": progress.step,
        "epochs": progress.step / run.steps_per_epoch,
        "steps_per_epoch": run.steps_per_epoch,
        "test": test_scores(progress.tests),
        "bits_sent": bits(sent, *counts),
        "bits_received": bits(received, *counts),
        "seconds": progress.ledger.seconds() if plan.timed else None,
        "compression_error": _mean_error(progress.errors),
        **environment(),
        "started": started,
        "finished": now(),
    }


def _mean_error(samples: list[tuple[float, float]]) -> dict[str, float] | None:
    """Of the sampled steps."""
    if not samples:
        return None
    relative, cosine = zip(*samples, strict=True)
    return {"relative": sum(relative) / len(samples), "cosine": sum(cosine) / len(samples), "samples": len(samples)}
