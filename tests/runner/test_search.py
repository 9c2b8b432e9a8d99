"""Sweepers that search get what a run is judged by, also from runs that diverge."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from nightly import each
from processes import command
from results import plain_result

from gcbench.runner.command.search import WORST, explain_sweeper_error, objectives
from gcbench.runner.records.result import count_bits
from gcbench.runner.records.schema import BITS_PER_MIB

SHORT = (
    *"logger=none trainer.launcher=virtual trainer.max_steps=2 trainer.threads=1".split(),
    *"model.widths=[16] hydra.sweeper.n_jobs=1".split(),
)


def search(
    outputs: Path, *overrides: str, sampler: str = "grid"
) -> subprocess.CompletedProcess[str]:
    optuna = ("hydra/sweeper=optuna", f"hydra/sweeper/sampler={sampler}")
    typed = ("-m", *optuna, f"outputs={outputs}", *SHORT, *overrides)
    return command(typed, outputs, os.environ, 300)


def test_a_search_finds_the_point_with_the_smallest_error(tmp_path: Path) -> None:
    rates = "optimizer.lr=choice(0.01,0.2,1e30)"
    done = search(tmp_path, rates)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert sorted(result["status"] for result in results) == ["diverged", "done", "done"]
    assert "the run diverged: " in done.stderr and " rows" not in done.stderr
    errors = {
        result["config"]["optimizer"]["lr"]: 100 - result["test"]["accuracy"]
        for result in results
        if result["status"] == "done"
    }
    (best,) = tmp_path.glob("optimization_results-*.yaml")
    found = yaml.safe_load(best.read_text())
    assert found["best_value"] == pytest.approx(min(errors.values()))
    assert errors[found["best_params"]["optimizer.lr"]] == min(errors.values())
    _, table = done.stdout.split("mlp, digits, 2 workers x 32, 2 steps")
    assert all(f"optimizer.lr={rate} " in table for rate in errors)
    assert f"the best: {best}" in done.stderr
    assert list(tmp_path.glob("figures/sweeps/mlp-digits-*.png"))
    again = search(tmp_path, "optimizer.lr=choice(0.01,0.2)", "name=again")
    assert again.returncode == 0, again.stderr
    assert "optimizer.lr=0.01 " in again.stdout, "its points have run under another name"
    assert len(list(tmp_path.glob("optimization_results-*.yaml"))) == 2


def test_a_study_in_a_database_is_resumed(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    stored = f"hydra.sweeper.storage=sqlite:///{file}", "hydra.sweeper.study_name=rates"
    rates = "optimizer.lr=interval(0.01,0.2)"
    for n in (1, 2):
        done = search(tmp_path, *stored, f"hydra.sweeper.n_trials={n}", rates, sampler="random")
        assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(file)) as database:
        trials = database.execute("select number, state from trials").fetchall()
    assert trials == [(number, "COMPLETE") for number in range(3)]
    assert len(list(tmp_path.glob("*/result.json"))) == 3


def test_an_error_without_a_text_is_told_by_its_type_and_place() -> None:
    def raised_in(module: str) -> Exception:
        names: dict[str, Any] = {"__name__": module}
        exec("def check():\n    assert False", names)
        with pytest.raises(AssertionError) as caught:
            names["check"]()
        return caught.value

    stored, space = map(raised_in, ("optuna.storages.rdb", "hydra_plugins.sweeper"))
    assert explain_sweeper_error(stored).startswith(
        "AssertionError in optuna.storages.rdb, line 2; type HYDRA"
    )
    assert explain_sweeper_error(space).endswith(
        "hydra_plugins.sweeper, line 2; it takes choice(a,b), range(a,b) and interval(a,b)"
    )
    assert explain_sweeper_error(ValueError("why")) == "why"


@pytest.mark.capability
def test_it_may_weigh_the_error_against_the_bits(tmp_path: Path) -> None:
    both = "hydra.sweeper.direction=[minimize,minimize]"
    done = search(tmp_path, "compressor=choice(none,qsgd)", both)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    points = {
        result["choices"]["compressor"]: [
            100 - result["test"]["accuracy"],
            result["bits_sent"]["per_worker"] / BITS_PER_MIB,
        ]
        for result in results
    }
    (best,) = tmp_path.glob("optimization_results-*.yaml")
    found = yaml.safe_load(best.read_text())
    for point in found["solutions"]:
        assert point["values"] == pytest.approx(points[point["params"]["compressor"]])
    assert "qsgd" in {point["params"]["compressor"] for point in found["solutions"]}


@each(
    ("test", "expected"),
    [
        ({"accuracy": 90.0, "loss": 0.3}, 10.0),
        ({"perplexity": 25.0, "loss": 3.2}, 25.0),
        ({"loss": 0.3}, 0.3),
        ({"loss": None}, WORST),
        ({"perplexity": None, "loss": 750.0}, WORST),
    ],
)
def test_the_objective_is_less_for_a_better_run(
    test: dict[str, float | None], expected: float
) -> None:
    sent = count_bits([8 * 2**20, 24 * 2**20], steps=1, steps_per_epoch=1, dense=32)
    assert objectives(plain_result(test=test, bits_sent=sent)) == [expected, 2.0]
    assert objectives(None) == [WORST, WORST]
