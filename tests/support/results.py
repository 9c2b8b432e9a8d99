"""Run directories as `gcbench` leaves them, without the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gcbench.papers.tables.configs import compose
from gcbench.runner.records.files import RunFiles, replace_file
from gcbench.runner.records.result import Begun, count_bits, make_result, summarize_tests
from gcbench.runner.records.schema import PHASES, SCHEMA_VERSION, Git, Result, Status
from gcbench.runner.settings.config import RunConfig

PARAMETERS = 1000
# A commit of after all changes of numbers, so that no result is stale.
GIT = Git(commit="c" * 40, dirty=False, date="2099-01-01T00:00:00+00:00")
BEGUN = Begun("2026-01-01T00:00:00+00:00", GIT, [], "abcd1234")


CONFIG: dict[str, Any] = {
    "seed": 1,
    "model": {},
    "dataset": {},
    "compressor": {},
    "optimizer": {"lr": 0.1},
    "trainer": {"workers": 1, "batch_size": 8},
}


def plain_result(**facts: Any) -> Result:
    """Return a result that no configuration was composed for, with `facts` in it."""
    data = {
        "schema_version": SCHEMA_VERSION,
        "identity": "01234567",
        "status": "done",
        "reason": None,
        "experiment": None,
        "choices": {"model": "mlp", "dataset": "digits", "compressor": "qsgd", "budget": "paper"},
        "config": CONFIG,
        "started": BEGUN.started,
        "finished": BEGUN.started,
    }
    return Result.parse({**data, **facts})


def result_of(
    experiment: str,
    *overrides: str,
    budget: str = "paper",
    seed: int = 1,
    accuracy: float = 90.0,
    ratio: float = 4.0,
    step_seconds: float | None = 0.25,
    status: Status = "done",
    reason: str | None = None,
    finished: str = "2026-01-01T00:00:00+00:00",
) -> dict[str, Any]:
    """Return the result.json of a run of a table's row.

    With status="failed" it has only what a run can write that never began.
    """
    plain = compose(experiment, budget, overrides)
    config = {**plain.config, "seed": seed, "experiment": experiment, "choices": plain.choices}
    result = {
        **make_result(RunConfig.of(config), BEGUN, status, reason).model_dump(),
        "started": finished,
        "finished": finished,
    }
    if status == "failed":
        return result
    epoch = {"event": "test", "step": 10, "epoch": 1.0, "accuracy": accuracy, "loss": 1.0}
    step = None if step_seconds is None else {"mean": step_seconds, "max": step_seconds}
    return {
        **result,
        "workers": 2,
        "processes": 1 if step is None else 2,
        "device": "cpu",
        "launcher": "virtual",
        "parameters": PARAMETERS,
        "steps": 10,
        "epochs": 1.0,
        "steps_per_epoch": 10,
        "test": summarize_tests([epoch]),
        "bits_sent": count_bits(
            [10 * 32 * PARAMETERS / ratio] * 2, 10, 10, 32 * PARAMETERS
        ).model_dump(),
        "analytic_ratio": None,
        "shannon_bits_per_step": None,
        "compression_error": {"relative": 0.5, "vnmse": 0.25, "cosine": 0.9, "samples": 1},
        "seconds": step
        and {"step": step, **{phase: {"mean": 0.05, "max": 0.05} for phase in PHASES[:-1]}},
    }


def write(directory: Path, result: dict[str, Any]) -> Path:
    """Write a result with two lines of metrics."""
    directory.mkdir(parents=True)
    files = RunFiles(directory)
    replace_file(files.result, json.dumps(result).encode())
    files.append_metrics({"event": "train", "step": 5, "epoch": 0.5, "loss": 2.0})
    files.append_metrics({"event": "test", "step": 10, "epoch": 1.0, **(result.get("test") or {})})
    return directory
