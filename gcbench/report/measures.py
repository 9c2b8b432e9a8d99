"""What a column of a table reads from a result: one function a measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Result = dict[str, Any]
MIB = 8 * 2**20
COMMUNICATION = ("encode", "exchange", "wait", "decode")


def emulated(result: Result) -> bool:
    """Whether its times are of exchanges that last as the cost model says."""
    return bool(result.get("seconds") and (result.get("network") or {}).get("emulated"))


def _score(name: str) -> Callable[..., float | None]:
    return lambda result: (result.get("test") or {}).get(name)


def _fact(*keys: str) -> Callable[..., float | None]:
    def read(result: Result) -> float | None:
        value: Any = result
        for key in keys:
            value = (value or {}).get(key)
        return value

    return read


def _error_rate(result: Result) -> float | None:
    accuracy = _score("accuracy")(result)
    return None if accuracy is None else 100 - accuracy


def _data_mib_per_epoch(result: Result, steps_per_epoch: int | None = None) -> float | None:
    """`steps_per_epoch` of the paper, where the run itself had others."""
    per_step = _fact("bits_sent", "per_step")(result)
    steps = steps_per_epoch or result.get("steps_per_epoch")
    return None if per_step is None or steps is None else per_step * steps / MIB


def _ratio(result: Result) -> float | None:
    """From the counts: an older gcbench wrote the ratio of bf16 parameters against 16 bits."""
    per_step, parameters = _fact("bits_sent", "per_step")(result), result.get("parameters")
    return 32 * parameters / per_step if per_step and parameters else None


def _coded_ratio(result: Result) -> float | None:
    """Of a code as short as the codes' Shannon bound."""
    bound, parameters = result.get("shannon_bits_per_step"), result.get("parameters")
    return 32 * parameters / bound if bound and parameters else None


def _shannon_total_bits(result: Result) -> float | None:
    bound = result.get("shannon_bits_per_step")
    return None if bound is None else bound * result["steps"]


def seconds(result: Result, *phases: str) -> float | None:
    """A step's, summed over `phases`, means over processes. Virtual workers have none."""
    times = result.get("seconds")
    return None if times is None else sum(times[phase]["mean"] for phase in phases)


def _milliseconds(*phases: str) -> Callable[..., float | None]:
    def read(result: Result) -> float | None:
        taken = seconds(result, *phases)
        return None if taken is None else 1e3 * taken

    return read


def _squared_error(result: Result) -> float | None:
    error = _fact("compression_error", "relative")(result)
    return None if error is None else error**2


def _share_of_communication(result: Result) -> float | None:
    step = seconds(result, "step")
    return None if step is None else 100 * seconds(result, *COMMUNICATION) / step  # type: ignore[operator]


def _images_per_second(result: Result) -> float | None:
    step = seconds(result, "step")
    return (
        None
        if step is None
        else result["workers"] * result["config"]["trainer"]["batch_size"] / step
    )


MEASURES: dict[str, Callable[..., float | None]] = {
    "accuracy": _score("accuracy"),  # per cent
    "best_accuracy": _score("best_accuracy"),
    "top5_accuracy": _score("top5_accuracy"),
    "error_rate": _error_rate,  # per cent
    "loss": _score("loss"),
    "perplexity": _score("perplexity"),
    "perplexity_of_batches": _score("perplexity_of_batches"),
    "distance": _score("distance"),  # to the optimum
    "data_mib_per_epoch": _data_mib_per_epoch,  # that a worker sends
    "ratio": _ratio,  # metered, against fp32 gradients
    "analytic_ratio": _fact("analytic_ratio"),  # as the method's paper counts
    "coded_ratio": _coded_ratio,
    "total_bits": _fact("bits_sent", "per_worker"),
    "shannon_total_bits": _shannon_total_bits,
    "relative_error": _fact(
        "compression_error", "relative"
    ),  # |update - g| / |g| in 2-norms, mean over the sampled steps
    "squared_error": _squared_error,  # the square of that, for papers that print |update - g|^2 / |g|^2
    "cosine": _fact("compression_error", "cosine"),
    "step_milliseconds": _milliseconds("step"),
    "exchange_milliseconds": _milliseconds("exchange"),
    "coding_milliseconds": _milliseconds("encode", "decode"),
    "share_of_communication": _share_of_communication,  # per cent of a step
    "parameters": _fact("parameters"),
    "images_per_second": _images_per_second,  # samples, over all workers
}
SCORES = {
    "accuracy",
    "best_accuracy",
    "top5_accuracy",
    "error_rate",
    "loss",
    "perplexity",
    "perplexity_of_batches",
    "distance",
}
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
    """None where the run has no such number: a run that failed, times of virtual workers, a score that was not finite."""
    return MEASURES[name](result, **settings)
