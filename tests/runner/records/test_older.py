"""Results of an older gcbench: which of their numbers still mean what they say."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from results import CONFIG, plain_result

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.papers.tables.keep import keep_runs
from gcbench.runner.records import older
from gcbench.runner.records.older import lost_error, read_changes
from gcbench.runner.records.store import RecordedRun, find_runs

LINES = [
    {"event": "compression", "step": step, "relative": relative, "cosine": 0.9, "shannon_bits": 7.0}
    for step, relative in ((1, 0.1), (51, 0.3))
]
OLD = {"relative": 0.2, "cosine": 0.9, "samples": 2}
TODAY = {**OLD, "vnmse": 0.06, "direction": False}
CHANGED = "2026-11-22T16:47:25+00:00"  # when random numbers changed
BEFORE, AFTER = "2026-11-22T17:47:24+01:00", "2026-11-22T15:47:25-01:00"  # by a second, and not


def kept(
    path: Path, error: dict[str, Any], date: str | None = None, started: str = BEFORE, **parts: Any
) -> RecordedRun:
    """Return a run that was kept with this error, and with other parts of a configuration."""
    config = {**CONFIG, **parts, "trainer": {**CONFIG["trainer"], "error_every": 50}}
    result = plain_result(config=config).model_dump() | {"compression_error": error}
    git = {"commit": "c" * 40, "dirty": False, "date": date}
    result |= {"git": git, "started": started, "test": {"accuracy": 9.0}}
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
        {"compressor": {"clip_sigma": 2.5}, "clip_sigma": 2.5},  # filled from its key
        {"compressor": {"momentum": 0.9}},
        {"compressor": {"method": {"_target_": "Signum", "momentum": 0.9}}},
        {"estimator": {"_target_": "gcbench.runner.train.zero_one_adam.ZeroOneAdam"}},
    ):
        run = kept(tmp_path / "run", OLD, **parts)
        assert run.result.compression_error is None and lost_error(run.result), parts
        assert [line["shannon_bits"] for line in run.read_metrics()] == [7.0, 7.0]
        assert not any({"relative", "cosine"} & line.keys() for line in run.read_metrics())


def test_keeping_another_run_leaves_an_older_line_as_it_was_recorded(tmp_path: Path) -> None:
    """Also keys that today's reader does not know, and errors that it leaves out."""
    results = tmp_path / "results"
    results.mkdir()
    old = kept(results / "other", OLD | {"bits_received": 3}, compressor={"clip_norm": 1.0})
    assert old.result.compression_error is None
    (line,) = lzma.decompress((results / "other.jsonl.xz").read_bytes()).decode().splitlines()
    new = kept(tmp_path / "new", TODAY, AFTER, seed=2)
    for _ in range(2):
        keep_runs(tmp_path, [old, new])
        lines = lzma.decompress((results / "other.jsonl.xz").read_bytes()).decode().splitlines()
        assert len(lines) == 2 and line in lines


def test_an_error_of_today_stays_as_it_is(tmp_path: Path) -> None:
    today = "2026-11-27T15:00:00+00:00"
    run = kept(tmp_path / "run", TODAY, today, compressor={"clip_norm": 1.0})
    assert run.result.compression_error is not None and not lost_error(run.result)
    assert run.result.compression_error.model_dump() == TODAY and run.read_metrics() == LINES


def test_a_result_is_stale_if_its_commit_is_older_than_a_change_that_touches_it(
    tmp_path: Path,
) -> None:
    """No repository is asked: dates of commits are enough, and where there is none, the start's."""
    random = {"compressor": {"method": {"_target_": "gcbench.core.methods.qsgd.QSGD", "bits": 4}}}
    fixed = {"compressor": {"method": {"_target_": "gcbench.core.methods.top_k.TopK"}}}
    for date, started, parts, stale in (
        (BEFORE, AFTER, random, True),  # from a checkout of before
        (AFTER, AFTER, random, False),
        (None, BEFORE, random, True),
        (None, AFTER, random, False),
        (BEFORE, BEFORE, fixed, False),
    ):
        run = kept(tmp_path / "run", TODAY, date, started, **parts)
        commits = [change.commit for change in run.outdated_by]
        assert commits == ["84f5a540"] * stale, (date, started, parts)


def test_all_keys_of_a_change_have_to_agree(tmp_path: Path) -> None:
    for schedule, stale in (
        ({"scale_by_workers": True, "warmup_epochs": 5.0}, True),
        ({"scale_by_workers": True, "warmup_epochs": 0.0}, False),
        ({"scale_by_workers": False, "warmup_epochs": 5.0}, False),
        ({"scale_by_workers": True}, False),
    ):
        run = kept(tmp_path / "run", TODAY, BEFORE, schedule=schedule)
        assert bool(run.outdated_by) == stale, schedule


def test_an_error_alone_makes_no_score_stale_and_without_a_score_nothing_is(tmp_path: Path) -> None:
    clipped = {"compressor": {"clip_norm": 1.0}}
    assert kept(tmp_path / "run", OLD, AFTER, **clipped).outdated_by == []
    run = kept(tmp_path / "run", OLD, BEFORE, compressor={"clip_sigma": 2.5})
    assert len(run.outdated_by) == 1
    # As at budget=bits, whose messages have the sizes that they have today.
    run.result = run.result.model_copy(update={"test": None})
    del run.outdated_by
    assert run.outdated_by == []


def test_changes_are_of_commits_and_mistakes_in_their_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(change.date.tzinfo and change.where for change in read_changes())
    text = (conf_directory() / "changes.yaml").read_text().replace("  text:", "  txet:", 1)
    (tmp_path / "changes.yaml").write_text(text)
    monkeypatch.setattr(older, "conf_directory", lambda: tmp_path)
    with pytest.raises(ConfigError, match="txet: no such key; type text"):
        read_changes.__wrapped__()
