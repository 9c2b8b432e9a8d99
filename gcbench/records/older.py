"""Results of an older gcbench, whose compression error was measured by something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from gcbench.records.schema import Result

Lines = list[dict[str, Any]]  # of metrics.jsonl

CHANGES_GOAL = ("clip_norm", "clip_sigma", "momentum")  # keys of a compressor


def renew_error(
    result: Result, read_metrics: Callable[[], Lines]
) -> tuple[Result, Callable[[], Lines]]:
    """Return a result and its curves with the compression error that a run has today, or none.

    An older result has no `vnmse`, which follows from its samples. Its error was measured by the
    workers' gradients, also where clipped gradients or momenta were coded, and in other exchanges
    of 0/1 Adam. Such errors are left out, as nothing that was kept says what they would be.
    """
    error = result.compression_error
    if error is None or "vnmse" in error.model_fields_set:
        return result, read_metrics
    if not _coded_gradients(result.config):
        return result.model_copy(update={"compression_error": None}), lambda: [
            {k: v for k, v in line.items() if k not in ("relative", "cosine")}
            for line in read_metrics()
        ]
    values = [line.get("relative") for line in read_metrics()]
    squares = [value**2 for value in values if isinstance(value, int | float)]
    vnmse = fmean(squares) if len(squares) == error.samples else None
    renewed = error.model_copy(update={"vnmse": vnmse})
    return result.model_copy(update={"compression_error": renewed}), read_metrics


def lost_error(result: Result) -> bool:
    """Return whether `renew_error` has left out the error of this result."""
    sampled = result.status == "done" and result.config["trainer"].get("error_every") is not None
    return sampled and result.compression_error is None and not _coded_gradients(result.config)


def _coded_gradients(config: Mapping[str, Any]) -> bool:
    """Return whether gradients themselves were coded, in exchanges that would be sampled today."""
    compressor = config["compressor"]
    method = compressor.get("method")
    parts = [compressor, *([method] if isinstance(method, Mapping) else [])]
    changed = any(part.get(key) is not None for part in parts for key in CHANGES_GOAL)
    return not changed and "zero_one_adam" not in str(config.get("estimator"))
