"""The result of a run, put together from what all processes counted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gcbench.comm import Meter
from gcbench.comm.meter import Kind, Total
from gcbench.comm.network import wire_bits
from gcbench.compressors.build import analytic_ratio, compressed_share
from gcbench.config import Config
from gcbench.launch.plan import Plan
from gcbench.records.environment import environment
from gcbench.records.result import SCHEMA_VERSION, Begun, bits, bits_between_nodes, now, test_scores
from gcbench.train.run import Progress, Run, Sample


def outcome(
    config: Config,
    plan: Plan,
    run: Run,
    progress: Progress,
    status: str,
    reason: str | None,
    begun: Begun,
    kept: bool,
) -> dict[str, Any]:
    """Return the content of result.json; every process calls it.

    `kept`: the weights lie beside it.
    """
    meter = Meter.of_workers(plan.workers)
    meter.load([totals for part in run.control.gather(run.comm.meter.state()) for totals in part])
    shapes = [parameter.shape for parameter in run.replica.parameters.values()]
    counts = _counts(meter, progress.step, run.steps_per_epoch, run.replica.dense_bits)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": status,
        "reason": reason,
        "experiment": config["experiment"],
        "choices": config["choices"],
        "config": {k: v for k, v in config.items() if k not in ("choices", "experiment")},
        "workers": plan.workers,
        "processes": plan.processes,
        "launcher": plan.launcher,
        "device": plan.device,
        "backend": plan.backend,
        "codec_backend": plan.codec_backend,
        "network": _network(config),
        "threads": plan.threads,
        "oversubscribed": plan.oversubscribed,
        "parameters": run.replica.numel,
        "steps": progress.step,
        "epochs": progress.step / run.steps_per_epoch,
        "steps_per_epoch": run.steps_per_epoch,
        "test": test_scores(progress.tests),
        **counts,
        "shannon_bits_per_step": _mean(progress.samples, "shannon_bits"),
        "analytic_ratio": analytic_ratio(run.compressor),
        "compressed_share": compressed_share(run.compressor, shapes, progress.step),
        "seconds": progress.ledger.seconds() if plan.timed else None,
        "compression_error": _mean_error(progress.samples),
        "estimator": run.estimator.facts(run, progress, counts["bits_sent"]["per_step"]),
        "extended": begun.extended,
        "weights": "weights.pt" if kept else None,
        **environment(begun.git),
        "started": begun.started,
        "finished": now(),
    }


def _network(config: Config) -> dict[str, Any]:
    """Return what collectives went over.

    It says whether the cost model's link set their times, and which; else what GCBENCH_LINK calls
    it.
    """
    return {
        "emulated": bool(config["network"]),
        **config["network"],
        "link": os.environ.get("GCBENCH_LINK"),
    }


def _counts(meter: Meter, steps: int, steps_per_epoch: int, dense: int) -> dict[str, Any]:
    """Return what all workers handed to the collectives, what they got, and what traveled."""
    kinds = sorted({kind for totals in meter.totals_by_worker for kind in totals})
    dense_wire = wire_bits("all_reduce", dense, len(meter.totals_by_worker))
    return {
        "bits_sent": bits(meter.sent_bits, steps, steps_per_epoch, dense),
        "bits_received": bits(meter.received_bits, steps, steps_per_epoch, dense),
        "bits_wire": bits(meter.wire_bits, steps, steps_per_epoch, dense_wire),
        "bits_between_nodes": _between_nodes(meter, steps, dense),
        "collectives": [
            _collective(kind, [totals[kind] for totals in meter.totals_by_worker]) for kind in kinds
        ],
    }


def _collective(kind: Kind, totals: Sequence[Total]) -> dict[str, Any]:
    """Return the totals of one kind over the whole run, as means over workers."""
    return {
        **kind._asdict(),
        "messages": totals[0].messages,
        "sent_bits": sum(t.sent_bits for t in totals) / len(totals),
        "received_bits": sum(t.received_bits for t in totals) / len(totals),
        "wire_bits": sum(t.wire_bits(kind) for t in totals) / len(totals),
    }


def _between_nodes(meter: Meter, steps: int, dense: int) -> dict[str, float | None] | None:
    """Return the bits between nodes, or None where nothing was exchanged between nodes."""
    nodes = max(
        (kind.workers for kind in meter.totals_by_worker[0] if kind.level == "between"), default=0
    )
    if not nodes:
        return None
    sent = [
        sum(total.sent_bits for kind, total in totals.items() if kind.level == "between")
        for totals in meter.totals_by_worker
    ]
    size = len(sent) // nodes
    return bits_between_nodes(
        [sum(sent[i : i + size]) for i in range(0, len(sent), size)], steps, dense
    )


def _mean_error(samples: Sequence[Sample]) -> dict[str, float | None] | None:
    if not samples:
        return None
    return {
        "relative": _mean(samples, "relative"),
        "cosine": _mean(samples, "cosine"),
        "samples": len(samples),
    }


def _mean(samples: Sequence[Sample], name: str) -> float | None:
    values = [sample[name] for sample in samples if name in sample]
    return sum(values) / len(values) if values else None
