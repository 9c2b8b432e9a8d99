"""The measures that tables show: one function per measure, from a result to a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gcbench.records.schema import BITS_PER_MIB, Result
from gcbench.records.store import RecordedRun

COMMUNICATION = ("encode", "exchange", "wait", "decode")


def emulated(result: Result) -> bool:
    """Return whether the run was timed on an emulated network, which follows the cost model."""
    return bool(result.seconds and result.network and result.network.emulated)


def _score(name: str) -> Callable[[Result], float | None]:
    return lambda result: (result.test or {}).get(name)


def _error_rate(result: Result) -> float | None:
    accuracy = _score("accuracy")(result)
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


def _milliseconds(*phases: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        taken = seconds(result, *phases)
        return None if taken is None else 1e3 * taken

    return read


def _relative_error(result: Result) -> float | None:
    return result.compression_error.relative if result.compression_error else None


def _squared_error(result: Result) -> float | None:
    error = _relative_error(result)
    return None if error is None else error**2


def _cosine(result: Result) -> float | None:
    return result.compression_error.cosine if result.compression_error else None


def _share_of_communication(result: Result) -> float | None:
    step, communication = seconds(result, "step"), seconds(result, *COMMUNICATION)
    return None if step is None or communication is None else 100 * communication / step


def _images_per_second(result: Result) -> float | None:
    step = seconds(result, "step")
    if step is None or result.workers is None:
        return None
    batch: int = result.config["trainer"]["batch_size"]
    return result.workers * batch / step


def _link_milliseconds(result: Result, network: str = "1gbit") -> float | None:
    """Return the milliseconds that a step's exchange takes on a network, by the cost model."""
    if not result.collectives:
        return None
    from gcbench.report.links import seconds_on  # imports torch, which other measures do not

    return 1e3 * seconds_on(result, network)


MEASURES: dict[str, Callable[..., float | None]] = {
    "accuracy": _score("accuracy"),  # per cent
    "best_accuracy": _score("best_accuracy"),
    "top5_accuracy": _score("top5_accuracy"),
    "tta_accuracy": _score("tta_accuracy"),  # with test-time augmentation
    "error_rate": _error_rate,  # per cent
    "loss": _score("loss"),
    "perplexity": _score("perplexity"),
    "perplexity_of_batches": _score("perplexity_of_batches"),
    "distance": _score("distance"),  # to the optimum
    "data_mib_per_epoch": _data_mib_per_epoch,  # sent by one worker
    "ratio": _ratio,  # bits of fp32 gradients over metered bits
    "analytic_ratio": lambda result: result.analytic_ratio,  # as the method's paper counts
    "coded_ratio": _coded_ratio,
    "total_bits": lambda result: result.bits_sent.per_worker if result.bits_sent else None,
    "shannon_total_bits": _shannon_total_bits,
    "relative_error": _relative_error,  # |update - g| / |g| in 2-norms, mean over sampled steps
    "squared_error": _squared_error,  # its square, which some papers print
    "cosine": _cosine,
    "step_milliseconds": _milliseconds("step"),
    "exchange_milliseconds": _milliseconds("exchange"),
    "coding_milliseconds": _milliseconds("encode", "decode"),
    "link_milliseconds": _link_milliseconds,  # of a mean step, between hosts of one worker
    "share_of_communication": _share_of_communication,  # per cent of a step
    "parameters": lambda result: result.parameters,
    "images_per_second": _images_per_second,  # samples of all workers
}
SCORES = {
    "accuracy",
    "best_accuracy",
    "top5_accuracy",
    "tta_accuracy",
    "error_rate",
    "loss",
    "perplexity",
    "perplexity_of_batches",
    "distance",
}
MAIN_SCORES = ("accuracy", "perplexity", "loss")  # a run's main score: the first that it has
TIMES = {
    "step_milliseconds",
    "exchange_milliseconds",
    "coding_milliseconds",
    "share_of_communication",
    "images_per_second",
}
LOWER = {
    "error_rate",
    "loss",
    "perplexity",
    "perplexity_of_batches",
    "distance",
    "relative_error",
    "squared_error",
}


def measure(name: str, result: Result, **settings: Any) -> float | None:
    """Return a measure of a run; None if the run lacks it. `settings` are the measure's arguments.

    A run that failed has no numbers, virtual workers have no times, and a score may be infinite.
    """
    return MEASURES[name](result, **settings)


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
