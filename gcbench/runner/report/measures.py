"""The measures that tables and figures show: how to read each from a result, and its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gcbench.runner.records.metrics import MAIN_SCORES
from gcbench.runner.records.schema import BITS_PER_MIB, Result
from gcbench.runner.records.store import RecordedRun

COMMUNICATION = ("encode", "exchange", "wait", "decode")
SPLIT = "dataset.split"  # the part of the data on which a run is tested
VALID = "valid"
ROUNDING = 1e-6  # relative errors below this are those of fp32


class Measure(NamedTuple):
    """A number of a run, and how reports treat it."""

    read: Callable[..., float | None]  # takes a result, and the settings of a column
    label: str  # of an axis, with the unit
    score: bool = False
    timed: bool = False  # whether it needs times of real workers
    lower: bool = False  # whether low is good; not asked of sizes and times


def _score(name: str, label: str, lower: bool = False) -> Measure:
    """Return the measure of a score in `result.test`."""
    return Measure(lambda result: (result.test or {}).get(name), label, score=True, lower=lower)


def _of_result(name: str, label: str, timed: bool = False) -> Measure:
    """Return the measure of a result's own number."""
    return Measure(lambda result: getattr(result, name), label, timed=timed)


def _error_rate(result: Result) -> float | None:
    accuracy = (result.test or {}).get("accuracy")
    return None if accuracy is None else 100 - accuracy


def _data_mib_per_epoch(result: Result, steps_per_epoch: int | None = None) -> float | None:
    """Return the MiB that a worker sends in `steps_per_epoch` steps, by default the run's own."""
    steps = steps_per_epoch or result.steps_per_epoch
    if result.bits_sent is None or steps is None:
        return None
    return result.bits_sent.per_step * steps / BITS_PER_MIB


def _ratio(result: Result) -> float | None:
    """Return fp32 bits over sent bits; older versions counted a bf16 parameter as 16 bits."""
    if not result.bits_sent or not result.bits_sent.per_step or not result.parameters:
        return None
    return 32 * result.parameters / result.bits_sent.per_step


def _bf16_ratio(result: Result) -> float | None:
    """Return bf16 bits over sent bits; older results do not have it, but the ratio to fp32."""
    ratio = _ratio(result)
    return ratio and ratio / 2


def _received_ratio(result: Result) -> float | None:
    """Return the bits received in an fp32 all-reduce over those received; None for one worker."""
    return result.bits_wire.ratio if result.bits_wire else None


def _received_mib(result: Result) -> float | None:
    """Return the MiB that a worker received from others in the whole run."""
    return result.bits_wire.per_worker / BITS_PER_MIB if result.bits_wire else None


def _compressed(result: Result) -> float | None:
    return None if result.compressed_share is None else 100 * result.compressed_share


def _coded_ratio(result: Result) -> float | None:
    """Return the compression ratio of an ideal entropy code, which reaches the Shannon bound."""
    bound, parameters = result.shannon_bits_per_step, result.parameters
    return 32 * parameters / bound if bound and parameters else None


def _shannon_total_bits(result: Result) -> float | None:
    bound = result.shannon_bits_per_step
    return None if bound is None or result.steps is None else bound * result.steps


def seconds(result: Result, *phases: str) -> float | None:
    """Return the seconds of a step's `phases`, averaged over processes; None if not timed."""
    times = result.seconds
    return None if times is None else sum(times[phase].mean for phase in phases)


def _milliseconds(label: str, *phases: str) -> Measure:
    """Return the measure of the time that a step spends in `phases`."""

    def read(result: Result) -> float | None:
        taken = seconds(result, *phases)
        return None if taken is None else 1e3 * taken

    return Measure(read, label, timed=True)


def _relative_error(result: Result) -> float | None:
    error = result.compression_error
    return _rounded(error.relative, ROUNDING) if error else None


def _vnmse(result: Result) -> float | None:
    error = result.compression_error
    return _rounded(error.vnmse, ROUNDING**2) if error else None


def _rounded(error: float | None, rounding: float) -> float | None:
    """Return an error, and 0 for one that is only the rounding of a mean in fp32."""
    return 0.0 if error is not None and error < rounding else error


def _cosine(result: Result) -> float | None:
    return result.compression_error.cosine if result.compression_error else None


def _share_of_communication(result: Result) -> float | None:
    step, communication = seconds(result, "step"), seconds(result, *COMMUNICATION)
    return None if step is None or communication is None else 100 * communication / step


def _link_milliseconds(result: Result, network: str = "1gbit") -> float | None:
    """Return the milliseconds of a mean step's exchange on a network, by the cost model."""
    if not result.collectives:
        return None
    from gcbench.runner.predict.recorded import (
        seconds_on,  # imports torch, which other measures do not
    )

    return 1e3 * seconds_on(result, network)


MEASURES = {
    "accuracy": _score("accuracy", "Test accuracy (%)"),
    "best_accuracy": _score("best_accuracy", "Best test accuracy (%)"),
    "top5_accuracy": _score("top5_accuracy", "Top-5 test accuracy (%)"),
    "tta_accuracy": _score("tta_accuracy", "Test accuracy by test-time augmentation (%)"),
    "error_rate": Measure(_error_rate, "Test error (%)", score=True, lower=True),
    "loss": _score("loss", "Test loss", lower=True),
    "perplexity": _score("perplexity", "Test perplexity", lower=True),
    "perplexity_of_batches": _score(
        "perplexity_of_batches", "Test perplexity, mean of batches", lower=True
    ),
    "distance": _score("distance", "Distance to the optimum", lower=True),
    "data_mib_per_epoch": Measure(_data_mib_per_epoch, "Sent by a worker in an epoch (MiB)"),
    "ratio": Measure(_ratio, "Compression ratio, metered (x fp32)"),
    "bf16_ratio": Measure(_bf16_ratio, "Compression ratio, metered (x bf16)"),
    "received_ratio": Measure(
        _received_ratio, "Compression ratio of what a worker receives (x fp32 all-reduce)"
    ),
    "analytic_ratio": _of_result(
        "analytic_ratio", "Compression ratio, by the paper's count (x fp32)"
    ),
    "coded_ratio": Measure(_coded_ratio, "Compression ratio, entropy-coded (x fp32)"),
    "total_bits": Measure(
        lambda result: result.bits_sent.per_worker if result.bits_sent else None,
        "Sent by a worker (bits)",
    ),
    "received_mib": Measure(_received_mib, "Received by a worker (MiB)", lower=True),
    "shannon_total_bits": Measure(_shannon_total_bits, "Sent by a worker, entropy-coded (bits)"),
    "compressed": Measure(_compressed, "Compressed, share of the values (%)"),
    # Means over sampled steps, with g the mean of what workers coded.
    "relative_error": Measure(_relative_error, "Relative error, 2-norm", lower=True),
    "vnmse": Measure(_vnmse, "vNMSE, |update - g|² / |g|²", lower=True),
    "cosine": Measure(_cosine, "Cosine with the gradient"),
    "step_milliseconds": _milliseconds("Time per step (ms)", "step"),
    "exchange_milliseconds": _milliseconds("Exchange per step (ms)", "exchange"),
    "coding_milliseconds": _milliseconds("Encoding and decoding per step (ms)", "encode", "decode"),
    "link_milliseconds": Measure(
        _link_milliseconds, "Exchange per step on a link, cost model (ms)"
    ),
    "share_of_communication": Measure(
        _share_of_communication, "Communication, share of a step (%)", timed=True
    ),
    "parameters": _of_result("parameters", "Parameters"),
    "samples_per_second": _of_result("samples_per_second", "Throughput (samples/s)", timed=True),
    "tokens_per_second": _of_result("tokens_per_second", "Throughput (tokens/s)", timed=True),
    "peak_mib": _of_result("peak_mib", "Peak memory of a process (MiB)"),
    "state_mib": _of_result("state_mib", "Memory of a worker's compressor (MiB)"),
}
DEFINITIONS = {
    "received_ratio": "Received ratio: the bits that a worker receives from others in a ring "
    "all-reduce of fp32 gradients, over those that it receives; ratios without that word are of "
    "what it hands over",
    "vnmse": "vNMSE: |update - g|^2 / |g|^2, with g the workers' mean of what was to be coded, "
    "averaged over sampled steps",
}  # sentences below tables
SCORES = {name for name, measure in MEASURES.items() if measure.score}
TIMES = {name for name, measure in MEASURES.items() if measure.timed}
LOWER = {name for name, measure in MEASURES.items() if measure.lower}


def measure(name: str, result: Result, **settings: Any) -> float | None:
    """Return a measure of a run; None if the run lacks it. `settings` are the measure's arguments.

    A run that failed has no numbers, virtual workers have no times, and a score may be infinite.
    """
    return MEASURES[name].read(result, **settings)


def measure_by_seed(name: str, runs: Iterable[RecordedRun], **settings: Any) -> dict[int, float]:
    """Return a measure by seed, for runs that differ only in their seeds, if they have it."""
    values = {run.seed: measure(name, run.result, **settings) for run in runs}
    return {seed: value for seed, value in values.items() if value is not None}


def is_infinite(name: str, result: Result) -> bool:
    """Return whether a run that was done has this score, but with a value that is not finite."""
    scores = result.test or {}
    return result.status == "done" and name in scores and scores[name] is None


def main_score(result: Result) -> tuple[str, float] | None:
    """Return the name and the value of a run's main score; None if it has none."""
    values = ((name, measure(name, result)) for name in MAIN_SCORES)
    return next(((name, value) for name, value in values if value is not None), None)
