"""A run ends at the test that reaches trainer.stop_at, and is shown, continued and extended so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence import run

from gcbench.runner.records.files import RunFiles

OVERRIDES = (
    *"trainer.workers=2 trainer.launcher=virtual compressor=powersgd min_size=0".split(),
    *"trainer.epochs=3 trainer.log_every=50".split(),
)


def curve_of(folder: Path) -> list[dict[str, float]]:
    lines = RunFiles(folder).read_metrics()
    keys = ("step", "accuracy", "loss")
    return [{key: line[key] for key in keys} for line in lines if line["event"] == "test"]


def test_a_run_ends_at_its_target_and_may_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    whole = run(tmp_path / "whole", *OVERRIDES)
    tests = curve_of(tmp_path / "whole")
    assert len(tests) == 3 and tests[0]["accuracy"] < tests[1]["accuracy"]
    stop = (*OVERRIDES, f"trainer.stop_at={tests[1]['accuracy']}")
    folder = tmp_path / "stopped"
    stopped = run(folder, *stop)
    assert (stopped["status"], stopped["epochs"]) == ("done", 2)
    assert curve_of(folder) == tests[:2], "by the schedule of the whole length"
    assert stopped["identity"] != whole["identity"]
    assert stopped["target"]["step"] == stopped["steps"] == tests[1]["step"]
    assert "first reached at epoch 2, step" in capsys.readouterr().out

    with caplog.at_level("INFO", "gcbench"):
        assert run(folder, *stop) == stopped
    assert "this run was finished" in caplog.text
    assert "the run ended there" in capsys.readouterr().out

    (folder / "result.json").unlink()  # as if it had been killed before it wrote its result
    again = run(folder, *stop)
    assert [again[key] for key in ("steps", "test")] == [stopped[key] for key in ("steps", "test")]
    assert again["bits_sent"] == stopped["bits_sent"] and curve_of(folder) == tests[:2]

    extended = run(folder, *OVERRIDES)
    assert extended["extended"] == [{"from_step": stopped["steps"], "from_epoch": 2.0}]
    assert extended["test"] == whole["test"] and extended["bits_sent"] == whole["bits_sent"]
    assert curve_of(folder) == tests
    one, other = (torch.load(tmp_path / name / "weights.pt") for name in ("whole", "stopped"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_target_that_is_not_reached_changes_nothing(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", *OVERRIDES, "trainer.max_steps=4")
    missed = run(tmp_path / "missed", *OVERRIDES, "trainer.max_steps=4", "trainer.stop_at=100")
    assert missed["test"] == plain["test"] and missed["steps"] == 4
    assert missed["target"]["value"] == 100 and missed["target"]["step"] is None


def test_the_last_test_of_a_run_that_stops_has_all_scores(tmp_path: Path) -> None:
    result = run(tmp_path, *OVERRIDES, "trainer.stop_at=1", "trainer.tta=true")
    assert result["epochs"] == 1 and "tta_accuracy" in result["test"]
