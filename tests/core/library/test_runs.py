"""gcbench.run, gcbench.sweep and gcbench.load_runs, as scripts and notebooks call them."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from results import plain_result
from scripts_of_users import python

import gcbench
from gcbench.core.codecs.kernels import backend_in_use, keep_backend, use_backend
from gcbench.core.errors import ConfigError
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun, write_kept

SMALL: dict[str, Any] = {
    "model.widths": (16,),  # a tuple is one value; a list would be a grid
    "trainer.workers": 2,
    "trainer.launcher": "virtual",
    "trainer.threads": 1,
    "trainer.batch_size": 16,
    "trainer.max_steps": 4,
    "trainer.log_every": 2,
    "logger.mode": "disabled",
    "min_size": 0,
}
DENSE = {key: value for key, value in SMALL.items() if key != "min_size"}


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """Its workers are new processes, which must not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import gcbench\n"
        "print('the script')\n"
        "result = gcbench.run('model=mlp', compressor='powersgd', rank=1, **{\n"
        "    'trainer.workers': 2, 'trainer.processes': 2, 'trainer.launcher': 'local',\n"
        "    'trainer.max_steps': 2, 'trainer.threads': 1, 'trainer.codec_backend': 'eager',\n"
        "    'logger.mode': 'disabled'})\n"
        "print(result.status, result.processes, result.config['rank'])\n"
    )
    lines = python(str(script), folder=tmp_path).splitlines()
    assert lines.count("the script") == 1 and lines[-1] == "done 2 1"


def test_slips_of_scripts_are_answered(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"3: type overrides as texts \('bits=4'\) or keywords"):
        gcbench.run(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bits=4 and bits=2: type only one of them"):
        gcbench.run("bits=4", bits=2)
    with pytest.raises(ConfigError, match="trainer.workers and trainer.gpus are one key"):
        gcbench.run("trainer.workers=3", trainer={"gpus": 2})
    with pytest.raises(ConfigError, match="--config-dir: options belong to the command line"):
        gcbench.run("--config-dir", "my_conf", "compressor=mine")
    with pytest.raises(ConfigError, match="bits: a set is no value of a key; type a number, a "):
        gcbench.sweep("compressor=qsgd", bits={2, 4})
    with pytest.raises(TypeError, match=r"type folders, as in load_runs\('outputs', 'older'\)"):
        gcbench.load_runs(["a", "b"])  # type: ignore[arg-type]


def test_a_grid_of_runs_and_their_frame(tmp_path: Path) -> None:
    results = gcbench.sweep("compressor=qsgd", outputs=tmp_path, bits=[2, 8], seed=[1, 2], **SMALL)
    facts = [(r.config["bits"], r.config["seed"]) for r in results]
    assert facts == [(2, 1), (2, 2), (8, 1), (8, 2)]
    assert all(isinstance(result, Result) and result.status == "done" for result in results)
    again = gcbench.run("compressor=qsgd", outputs=tmp_path, bits=8, seed=2, **SMALL)
    assert again == results[-1]  # including its start time, so it did not run again

    runs = gcbench.load_runs(tmp_path)
    assert len(runs) == 4 and set(runs.columns) >= {"bits", "optimizer.lr", "accuracy", "ratio"}
    assert list(runs["trainer.label_smoothing"]) == [0] * 4, "what changes nothing is a value, too"
    assert set(runs["trainer.launcher"]) == {results[0].config["trainer"]["launcher"]}
    ratios = runs.groupby("bits").ratio.mean()
    assert ratios[2] > 2 * ratios[8]
    curves = runs[runs.bits == 2].sort_values("seed").curves()
    assert list(curves.run.unique()) == list(runs[runs.bits == 2].sort_values("seed").run)
    train = curves[curves.event == "train"]
    assert list(train.step) == [2, 4] * 2 and train.loss.notna().all()


def test_joined_frames_read_their_curves(tmp_path: Path) -> None:
    for seed in (1, 2):
        gcbench.run("compressor=none", directory=tmp_path / f"{seed}", seed=seed, **DENSE)
    a, b = (gcbench.load_runs(tmp_path / f"{seed}") for seed in (1, 2))
    both = pd.concat([a, b])
    assert set(both.curves().run) == {*a["run"], *b["run"]}
    assert set(both.merge(a[["run"]]).curves().run) == set(a["run"])
    with pytest.raises(ConfigError, match="these rows have no column run"):
        both[["seed"]].curves()


def test_frames_with_two_runs_at_one_place_are_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = []
    for seed in (1, 2):
        gcbench.run("compressor=none", directory=tmp_path / f"{seed}" / "run", seed=seed, **DENSE)
        monkeypatch.chdir(tmp_path / f"{seed}")
        frames.append(gcbench.load_runs("run"))
    assert list(pd.concat([frames[1], frames[1]]).curves().run.unique()) == ["run"]
    with pytest.raises(ConfigError, match="run: two different runs of these frames have this"):
        pd.concat(frames)


def test_kept_runs_of_one_name_read_their_own_curves(tmp_path: Path) -> None:
    def run(accuracy: float) -> RecordedRun:
        lines = [{"event": "test", "step": 1, "accuracy": accuracy}]
        finished = f"2026-01-01T00:00:{accuracy:.0f}+00:00"
        result = plain_result(test={"accuracy": accuracy}, finished=finished)
        return RecordedRun(result, "outputs/sgd-s1", lambda: lines)

    write_kept(tmp_path / "all.jsonl.xz", [run(10.0), run(20.0), run(30.0)])
    runs = gcbench.load_runs(tmp_path)
    both = runs[["run", "accuracy"]].merge(runs.curves(), on="run")
    assert list(both.accuracy_x) == list(both.accuracy_y) == [10.0, 20.0, 30.0]


def test_mistakes_are_refused_before_anything_starts(tmp_path: Path) -> None:
    common = {"outputs": tmp_path / "runs", **SMALL}
    for keys, says in (
        ({"bits": [4, 9]}, "bits=9: type a whole number from 1 to 8"),
        ({"compressor": ["qsgd", "qsdg"]}, "qsdg"),
        ({"rank": 2}, "rank=2: no such key with these choices; rank belongs to"),
        ({"bits": []}, r"bits=\[\]: type at least one value"),
        ({"name": "a/b"}, "name='a/b'"),
    ):
        with pytest.raises(ConfigError, match=says):
            gcbench.sweep(**common, **keys)
    assert not (tmp_path / "runs").exists()


def test_a_point_that_diverges_does_not_end_a_sweep(tmp_path: Path) -> None:
    rates = {"optimizer.lr": [1e30, 0.1]}
    results = gcbench.sweep("compressor=none", outputs=tmp_path, **rates, **DENSE)
    assert [result.status for result in results] == ["diverged", "done"]


def test_a_thread_can_run(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        call = threads.submit(gcbench.run, "compressor=none", outputs=tmp_path, **DENSE)
        assert call.result().status == "done"


def test_points_of_one_directory_are_refused_before_anything_starts(tmp_path: Path) -> None:
    there = tmp_path / "one"
    with pytest.raises(ConfigError, match=r"points of this sweep differ \(seed=1 -> 2\), and each"):
        gcbench.sweep("compressor=none", directory=there, seed=[1, 2], **DENSE)
    assert not there.exists()
    longer = {**DENSE, "trainer.max_steps": [2, 4], "trainer.keep_weights": True}
    results = gcbench.sweep("compressor=none", directory=there, **longer)
    assert [result.steps for result in results] == [2, 4]


def test_a_run_leaves_torch_as_the_script_set_it(tmp_path: Path) -> None:
    threads, drawn = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        for seed in (1, 2):
            torch.manual_seed(seed)
            gcbench.run("compressor=none", directory=tmp_path / f"{seed}", **DENSE)
            drawn.append(torch.rand(1).item())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    expected = [torch.rand(1, generator=torch.Generator().manual_seed(s)).item() for s in (1, 2)]
    assert drawn == expected


def test_a_run_leaves_the_codecs_as_the_script_set_them(tmp_path: Path) -> None:
    before = backend_in_use()
    with keep_backend():
        use_backend("compiled")
        gcbench.run("compressor=none", directory=tmp_path, **DENSE)
        assert backend_in_use() == "compiled"
    assert backend_in_use() == before


def test_curves_are_those_of_the_folder_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gcbench.run("compressor=none", directory="here", **DENSE)
    runs = gcbench.load_runs("here")
    lines = len(runs.curves())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert len(runs.curves()) == lines > 0


def test_values_of_python_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "it's $5, {here} = [1]"
    result = gcbench.run("compressor=none", directory=folder, **DENSE)
    assert result.config["directory"] == str(folder) and (folder / "result.json").is_file()


def test_damaged_files_are_named_and_missing_folders_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result.json").write_text("{")
    logging.getLogger("gcbench").propagate = True
    with caplog.at_level(logging.WARNING, logger="gcbench"):
        runs = gcbench.load_runs(tmp_path)
    assert len(runs) == 0 and "result.json" in caplog.text
    with pytest.raises(ConfigError, match="there is no such folder"):
        gcbench.load_runs(tmp_path / "outputs")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="outputs: there is no such folder"):
        gcbench.load_runs()
