"""The result of a run, assembled from the counts of all processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from gcbench.core.comm.meter import Kind, Meter, Total, wire_bits
from gcbench.core.wrappers.virtual import (
    analytic_ratio,
    compressed_share,
    dense_steps_of,
    is_direction,
    state_bytes,
)
from gcbench.runner.data import Data
from gcbench.runner.launch.memory import peak_bytes
from gcbench.runner.launch.plan import Plan
from gcbench.runner.records.metrics import find_target
from gcbench.runner.records.result import (
    Begun,
    count_bits,
    count_bits_between_nodes,
    make_result,
    summarize_tests,
)
from gcbench.runner.records.schema import (
    BitsBetweenNodes,
    Collective,
    CompressionError,
    Network,
    Phase,
    Resharded,
    Result,
    Status,
)
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.run import Progress, Run, Sample


class Ending(NamedTuple):
    """How the steps of a run ended."""

    status: Status
    reason: str | None  # why the status is not done
    resumed_step: int  # the first step since the last start
    has_weights: bool  # whether weights.pt is beside the result


def make_outcome(
    config: RunConfig, plan: Plan, run: Run, progress: Progress, begun: Begun, ending: Ending
) -> Result:
    """Return the result of a run; every process must call this."""
    meter = Meter.of_workers(plan.workers)
    meter.load(
        [totals for part in run.control.gather(run.exchange.meter.state()) for totals in part]
    )
    shapes = run.replica.shapes.values()
    dense_wire = _dense_wire_bits(
        run.replica.dense_bits, begun.resharded, plan.workers, progress.step
    )
    counts = _count_traffic(
        meter, progress.step, run.steps_per_epoch, run.replica.dense_bits, dense_wire
    )
    seconds = progress.ledger.seconds() if plan.timed else None
    return make_result(
        config,
        begun,
        ending.status,
        ending.reason,
        workers=plan.workers,
        processes=plan.processes,
        launcher=plan.launcher,
        device=plan.device,
        backend=plan.backend,
        codec_backend=progress.codec_sums[-1],
        codec_sums=", then ".join(progress.codec_sums) or None,
        overlap_ratio=run.pipeline.overlap_ratio,
        network=_describe_network(config),
        threads=plan.threads,
        oversubscribed=plan.oversubscribed,
        parameters=run.replica.numel,
        steps=progress.step,
        resumed_step=ending.resumed_step,
        epochs=progress.step / run.steps_per_epoch,
        steps_per_epoch=run.steps_per_epoch,
        test=summarize_tests(progress.tests),
        target=find_target(progress.tests, run.settings.goal),
        **counts,
        shannon_bits_per_step=_shannon_bits(run, progress),
        analytic_ratio=analytic_ratio(run.compressor),
        compressed_share=compressed_share(
            run.compressor,
            shapes,
            progress.kept.number,
            run.estimator.whole_gradients(run, progress),
        ),
        seconds=seconds and {phase: Phase(**value) for phase, value in seconds.items()},
        compression_error=_mean_error(progress.samples, is_direction(run.compressor)),
        tokens_per_sample=_tokens_per_sample(run.data, plan.workers),
        **_memory(run, progress),
        estimator=run.estimator.facts(run, progress, counts["bits_sent"].per_step),
        weights="weights.pt" if ending.has_weights else None,
    )


def _tokens_per_sample(data: Data, workers: int) -> int | None:
    """Return how many words of a text a sample has; None for other data."""
    if data.kind != "tokens":
        return None
    inputs, _ = data.batch(epoch=0, step=0, worker=0, workers=workers, batch_size=1, seed=0)
    return inputs.numel()


def _memory(run: Run, progress: Progress) -> dict[str, float]:
    """Return the MiB of the process that took most, and of the worker whose method keeps most."""
    here = peak_bytes(run.replica.device), state_bytes(progress.kept.state)
    peaks, states = zip(*run.control.gather(here), strict=True)
    return {"peak_mib": max(peaks) / 2**20, "state_mib": max(states) / 2**20}


def _describe_network(config: RunConfig) -> Network:
    """Return the emulated link, or the name of the real one."""
    emulated = config.network.as_dict() if config.network else {}
    return Network(emulated=bool(emulated), **emulated, link=os.environ.get("GCBENCH_LINK"))


def _dense_wire_bits(dense: int, resharded: Sequence[Resharded], workers: int, steps: int) -> float:
    """Return the bits on the wire per step of whole gradients, as a mean over all steps.

    Before a change of the number of workers they are those of the earlier number.
    """
    bits, begin = 0.0, 0
    for part in resharded:
        bits += (part.from_step - begin) * wire_bits("all_reduce", dense, part.workers)
        begin = part.from_step
    now = wire_bits("all_reduce", dense, workers)
    return (bits + (steps - begin) * now) / steps if resharded else now


def _count_traffic(
    meter: Meter, steps: int, steps_per_epoch: int, dense: int, dense_wire: float
) -> dict[str, Any]:
    kinds = sorted({kind for totals in meter.totals_by_worker for kind in totals})
    return {
        "bits_sent": count_bits(meter.sent_bits, steps, steps_per_epoch, dense),
        "bits_wire": count_bits(meter.wire_bits, steps, steps_per_epoch, dense_wire),
        "bits_between_nodes": _between_nodes(meter, steps, dense),
        "collectives": [
            _collective(kind, [totals.get(kind, Total()) for totals in meter.totals_by_worker])
            for kind in kinds
        ],
    }


def _collective(kind: Kind, totals: Sequence[Total]) -> Collective:
    return Collective(
        **kind._asdict(),
        messages=max(t.messages for t in totals),
        sent_bits=sum(t.sent_bits for t in totals) / len(totals),
        received_bits=sum(t.received_bits for t in totals) / len(totals),
        wire_bits=sum(t.wire_bits(kind) for t in totals) / len(totals),
    )


def _between_nodes(meter: Meter, steps: int, dense: int) -> BitsBetweenNodes | None:
    """Return the bits that nodes sent to each other; None if they exchanged nothing."""
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
    by_node = [sum(sent[start : start + size]) for start in range(0, len(sent), size)]
    return count_bits_between_nodes(by_node, steps, dense)


def _shannon_bits(run: Run, progress: Progress) -> float | None:
    """Return the Shannon bound of the codes in bits per step, averaged over all steps.

    Whole gradients, in a dense warm-up or of the estimator, count 32 bits per value.
    """
    bits = _mean(progress.samples, "shannon_bits")
    if bits is None:
        return None
    kept = progress.kept
    dense = min(dense_steps_of(run.compressor), kept.number)
    whole = dense + run.estimator.whole_gradients(run, progress)
    coded = bits * (kept.exchanges - dense * kept.messages)
    return (coded + whole * run.replica.dense_bits) / progress.step


def _mean_error(samples: Sequence[Sample], direction: bool) -> CompressionError | None:
    measured = [sample for sample in samples if {"relative", "cosine"} & sample.keys()]
    if not measured:
        return None
    squares = [{"vnmse": s["relative"] ** 2} for s in measured if "relative" in s]
    return CompressionError(
        relative=_mean(measured, "relative"),
        vnmse=_mean(squares, "vnmse"),
        cosine=_mean(measured, "cosine"),
        samples=len(measured),
        direction=direction,
    )


def _mean(samples: Sequence[Sample], name: str) -> float | None:
    values = [sample[name] for sample in samples if name in sample]
    return sum(values) / len(values) if values else None
