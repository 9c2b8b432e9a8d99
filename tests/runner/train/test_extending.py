"""A finished run keeps its weights, and continues from them when more epochs are asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from sentence import run

from gcbench.core.errors import ConfigError
from gcbench.runner.identity import identify
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import read_run
from gcbench.runner.records.summary import _facts

OVERRIDES = [
    *"trainer.workers=2 trainer.launcher=virtual compressor=powersgd min_size=0".split(),
    "trainer.log_every=5",
]
CONSTANT = ["schedule=constant", "trainer.checkpoint_keep=9"]


def kept(folder: Path) -> dict[str, torch.Tensor]:
    state_dict: dict[str, torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return state_dict


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoints/*"))


def rates_of(folder: Path) -> dict[int, float]:
    lines = RunFiles(folder).read_metrics()
    return {line["step"]: line["lr"] for line in lines if line["event"] == "train"}


def test_an_extended_run_ends_as_one_that_was_as_long_from_the_start(tmp_path: Path) -> None:
    """Weights, momentum, residuals, factors, counters and tests agree.

    This needs a schedule that does not depend on the length.
    """
    whole = run(tmp_path / "whole", *OVERRIDES, *CONSTANT, "trainer.epochs=0.5")
    assert whole["extended"] == [] and whole["weights"] == "weights.pt"
    short = run(tmp_path / "parts", *OVERRIDES, *CONSTANT, "trainer.epochs=0.25")
    long = run(tmp_path / "parts", *OVERRIDES, *CONSTANT, "trainer.epochs=0.5")
    assert short["steps"] == 11
    assert long["extended"] == [{"from_step": 11, "from_epoch": short["epochs"]}]
    assert all(long["test"][key] == whole["test"][key] for key in ("accuracy", "loss"))
    for key in ("bits_sent", "steps", "epochs", "compression_error"):
        assert long[key] == whole[key]
    one, other = kept(tmp_path / "whole"), kept(tmp_path / "parts")
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    assert ("extended", "from step 11 (epoch 0.25)") in _facts(Result.parse(long))


def test_the_result_of_the_shorter_run_stays(tmp_path: Path) -> None:
    first = run(tmp_path, *OVERRIDES, "trainer.max_steps=3")
    before = kept(tmp_path)
    run(tmp_path, *OVERRIDES, "trainer.max_steps=5")
    (aside,) = tmp_path.glob("result.*.json")
    (old,) = tmp_path.glob("weights.*.pt")
    assert json.loads(aside.read_text()) == first
    assert all(torch.equal(x, before[k]) for k, x in torch.load(old, weights_only=True).items())
    lines = RunFiles(tmp_path).read_metrics()
    assert [line["step"] for line in lines if line["event"] == "test"] == [3, 5]
    again = run(tmp_path, *OVERRIDES, "trainer.max_steps=5")
    assert again["steps"] == 5 and len(list(tmp_path.glob("result.*.json"))) == 1
    third = run(tmp_path, *OVERRIDES, "trainer.max_steps=6")
    assert [place["from_step"] for place in third["extended"]] == [3, 5]


def test_a_schedule_is_that_of_the_new_length(tmp_path: Path) -> None:
    for folder, steps in (("short", 10), ("short", 20), ("long", 20)):
        run(tmp_path / folder, *OVERRIDES, f"trainer.max_steps={steps}", "trainer.log_every=1")
    rates, expected = rates_of(tmp_path / "short"), rates_of(tmp_path / "long")
    assert rates[10] < 0.1 * expected[10]
    assert all(rates[step] == expected[step] for step in range(11, 21))


def test_a_schedule_made_for_the_length_of_a_run_is_not_extended(tmp_path: Path) -> None:
    """With a typed T_max, the schedule does not depend on the length, so the run can go on."""
    overrides = [*OVERRIDES, "schedule._target_=torch.optim.lr_scheduler.CosineAnnealingLR"]
    run(tmp_path / "open", *overrides, "trainer.max_steps=2")
    with pytest.raises(ConfigError, match="CosineAnnealingLR was made for its 2 steps"):
        run(tmp_path / "open", *overrides, "trainer.max_steps=4")
    run(tmp_path / "typed", *overrides, "schedule.T_max=4", "trainer.max_steps=2")
    run(tmp_path / "typed", *overrides, "schedule.T_max=4", "trainer.max_steps=4")
    run(tmp_path / "whole", *overrides, "schedule.T_max=4", "trainer.max_steps=4")
    assert kept(tmp_path / "typed").keys() == kept(tmp_path / "whole").keys()
    for name, weight in kept(tmp_path / "typed").items():
        assert torch.equal(weight, kept(tmp_path / "whole")[name])


def test_nothing_else_may_change_when_a_run_is_extended(tmp_path: Path) -> None:
    """The shorter command is told so, and the longer run is none that was as long at once."""
    run(tmp_path, *OVERRIDES, "trainer.max_steps=2")
    with pytest.raises(ConfigError, match=r"with another configuration \(.*rank=2 -> 1\)"):
        run(tmp_path, *OVERRIDES, "trainer.max_steps=4", "rank=1")
    run(tmp_path, *OVERRIDES, "trainer.max_steps=4")
    with pytest.raises(ConfigError, match=r"was extended to trainer.max_steps=4; type that to see"):
        run(tmp_path, *OVERRIDES, "trainer.max_steps=2")
    extended = read_run(tmp_path)
    assert extended.flat["extended_from_step"] == [2]
    assert extended.result.identity != identify(extended.config)


def test_an_extension_that_was_killed_goes_on_only_as_it_was_begun(tmp_path: Path) -> None:
    """Its checkpoint follows the schedule of its own length."""
    keep = [*OVERRIDES, "trainer.checkpoint_keep=9", "trainer.checkpoint_steps=4"]
    run(tmp_path, *keep, "trainer.max_steps=2")
    short = (tmp_path / "result.json").read_text()
    whole = run(tmp_path, *keep, "trainer.max_steps=8")
    (tmp_path / "result.json").write_text(short)
    shutil.rmtree(tmp_path / "checkpoints" / checkpoints(tmp_path)[-1])
    assert checkpoints(tmp_path)[-1].endswith("4")
    with pytest.raises(ConfigError, match=r"unfinished run .*\(trainer.max_steps=8 -> 6\)"):
        run(tmp_path, *keep, "trainer.max_steps=6")
    resumed = run(tmp_path, *keep, "trainer.max_steps=8")
    assert resumed["test"]["loss"] == whole["test"]["loss"]


def test_a_run_whose_state_was_not_kept_is_not_extended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = [*OVERRIDES, "trainer.max_steps=2"]
    result = run(tmp_path, *two, "trainer.keep_weights=false")
    assert result["weights"] is None and not (tmp_path / "weights.pt").exists()
    assert not checkpoints(tmp_path)
    says = r"trainer.max_steps=2 -> 4\): the state at its end was not kept, as trainer.keep_w"
    with pytest.raises(ConfigError, match=says):
        run(tmp_path, *OVERRIDES, "trainer.max_steps=4")
    for asked in ("null", "false", "true"):
        assert "without weights.pt" not in caplog.text
        run(tmp_path, *two, f"trainer.keep_weights={asked}")
    assert f"{tmp_path} was finished without weights.pt; type rerun=true" in caplog.text


def test_large_weights_and_states_are_kept_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 * 1210
    for name, limit, overrides, has_weights, has_state in (
        ("a", size, [], True, False),  # exactly the weights
        ("b", size - 1, [], False, False),
        ("c", size - 1, ["trainer.keep_weights=true"], True, True),
        ("d", 200e6, [], True, True),
    ):
        monkeypatch.setattr("gcbench.runner.train.checkpoints.LIMIT_BYTES", limit)
        result = run(tmp_path / name, *OVERRIDES, "trainer.max_steps=2", *overrides)
        assert result["parameters"] == 1210
        assert bool(result["weights"]) == has_weights == (tmp_path / name / "weights.pt").exists()
        assert checkpoints(tmp_path / name) == ["step-00000002"] * has_state
