"""Results of an older gcbench: which of their errors still mean what they say."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from results import CONFIG, plain_result

from gcbench.records.older import lost_error
from gcbench.records.store import RecordedRun, find_runs

LINES = [
    {"event": "compression", "step": step, "relative": relative, "cosine": 0.9, "shannon_bits": 7.0}
    for step, relative in ((1, 0.1), (51, 0.3))
]
OLD = {"relative": 0.2, "cosine": 0.9, "samples": 2}


def kept(path: Path, error: dict[str, Any], **parts: Any) -> RecordedRun:
    """Return a run that was kept with this error, and with other parts of a configuration."""
    config = {**CONFIG, **parts, "trainer": {**CONFIG["trainer"], "error_every": 50}}
    result = plain_result(config=config).model_dump() | {"compression_error": error}
    line = {"name": "run", "result": result, "metrics": LINES}
    path.with_suffix(".jsonl.xz").write_bytes(lzma.compress(json.dumps(line).encode()))
    found = find_runs([path.with_suffix(".jsonl.xz")])
    assert not found.unreadable
    return found.runs[0]


def test_an_older_error_of_gradients_stays_and_its_samples_give_the_vnmse(tmp_path: Path) -> None:
    """The mean of squares, not the square of the mean."""
    for compressor in ({}, {"clip_norm": None, "method": {"_target_": "QSGD", "bits": 4}}):
        run = kept(tmp_path / "run", OLD, compressor=compressor)
        error = run.result.compression_error
        assert error is not None and error.relative == 0.2 and error.cosine == 0.9
        assert error.vnmse == pytest.approx((0.1**2 + 0.3**2) / 2)
        assert run.read_metrics() == LINES and not lost_error(run.result)


def test_an_older_error_of_anything_else_is_left_out_with_its_curve(tmp_path: Path) -> None:
    """It says how far clipped gradients, momenta or their signs are from gradients."""
    for parts in (
        {"compressor": {"clip_norm": 1.0, "method": "a class"}},
        {"compressor": {"clip_sigma": 2.5}},
        {"compressor": {"momentum": 0.9}},
        {"compressor": {"method": {"_target_": "Signum", "momentum": 0.9}}},
        {"estimator": {"_target_": "gcbench.train.zero_one_adam.ZeroOneAdam"}},
    ):
        run = kept(tmp_path / "run", OLD, **parts)
        assert run.result.compression_error is None and lost_error(run.result), parts
        assert [line["shannon_bits"] for line in run.read_metrics()] == [7.0, 7.0]
        assert not any({"relative", "cosine"} & line.keys() for line in run.read_metrics())


def test_an_error_of_today_stays_as_it_is(tmp_path: Path) -> None:
    today = {**OLD, "vnmse": 0.06, "direction": False}
    run = kept(tmp_path / "run", today, compressor={"clip_norm": 1.0})
    assert run.result.compression_error is not None and not lost_error(run.result)
    assert run.result.compression_error.model_dump() == today and run.read_metrics() == LINES
