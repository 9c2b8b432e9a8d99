"""Runs that are published as Parquet have what load_runs says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from results import result_of, write

import gcbench
from gcbench.core.errors import ConfigError
from gcbench.papers.command import report

SGD, RANK_7 = "powersgd/table4/sgd", "powersgd/table4/rank_7"


def test_parquet_has_every_run_knob_and_curve(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="outputs.*no runs there"):
        report(["publish", "new"])
    for name in (SGD, RANK_7):
        for seed in (1, 2):
            result = result_of(name, seed=seed, accuracy=90 + seed)
            write(here / "outputs" / f"{Path(name).name}-{seed}", result)
    report(["publish", "new"])
    assert (
        capsys.readouterr().out
        == "new: runs.parquet, curves.parquet, map.json, README.md; 4 runs\n"
    )
    expected = gcbench.load_runs("outputs")
    frame = pd.read_parquet("new/runs.parquet")
    assert [*frame] == [*expected] and len(frame) == 4
    for name in ("run", "seed", "accuracy", "optimizer.lr", "rank"):
        pd.testing.assert_series_equal(frame[name], pd.Series(expected[name]), check_dtype=False)
    assert {*frame["error_feedback"].dropna()} <= {"true", "false", True, False}
    curves = pd.read_parquet("new/curves.parquet")
    pd.testing.assert_frame_equal(curves, pd.DataFrame(expected.curves()), check_dtype=False)
    assert json.loads(Path("new/map.json").read_text()) == []
    card = " ".join(Path("new/README.md").read_text().split())
    assert "4 runs of 2 configurations by 2 methods, and 8 lines of their curves" in card
    before = Path("new/runs.parquet").read_bytes()
    report(["publish", "new"])
    assert Path("new/runs.parquet").read_bytes() == before


def test_it_needs_one_folder_and_pyarrow(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here / "outputs" / "one", result_of(SGD))
    for typed in ([], ["a", "b"]):
        with pytest.raises(ConfigError, match="publish: type one folder, as in"):
            report(["publish", *typed])
    monkeypatch.setattr("gcbench.papers.publish.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="Parquet needs the package pyarrow; type pip install"):
        report(["publish", "new"])
    assert not Path("new").exists()
