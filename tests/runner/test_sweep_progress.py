"""Sweeps say what they will run and how long it takes, show progress, and run nothing twice."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra.core.utils import JobReturn, JobStatus
from needed import patience
from processes import command
from results import plain_result
from sentence import compose, config_of, values_of

from gcbench.runner.command.sweep import SweepProgress, SweepRow, plan_sentence
from gcbench.runner.config.errors import RunFailed, outcome
from gcbench.runner.config.naming import run_directory
from gcbench.runner.launch import estimate
from gcbench.runner.launch.estimate import START_SECONDS, Estimates
from gcbench.runner.launch.same import find_same_run
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.result import Begun, make_result
from gcbench.runner.records.schema import Result, Status
from gcbench.runner.settings.config import RunConfig

OVERRIDES = [
    *"logger.mode=disabled trainer.launcher=virtual trainer.max_steps=2 model.widths=[16]".split(),
    "trainer.threads=1",
]


def sweep(outputs: Path, *overrides: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    keys = {override.partition("=")[0] for override in overrides}
    shared = [one for one in OVERRIDES if one.partition("=")[0] not in keys]
    typed = ("-m", f"outputs={outputs}", *shared, *overrides)
    return command(typed, outputs, os.environ, timeout)


@pytest.mark.capability
def test_a_sweep_goes_on_after_a_failure_lists_it_and_skips_what_is_done(tmp_path: Path) -> None:
    first = sweep(tmp_path, "optimizer.lr=0.05,1e30,-1,0.1")
    assert first.returncode == 1
    assert "gcbench: 4 rows, 1 of them mistaken (optimizer.lr=-1" in first.stderr
    assert "; 3 x about 5 s = 15 s" in first.stderr
    assert "row 4 of 4" in first.stderr and "2 of 4 rows failed" in first.stderr
    assert "tries them again, those that diverged only with rerun=true:" in first.stderr
    assert "was not finite at step" in first.stderr
    assert "optimizer.lr=-1: type a number above 0" in first.stderr.partition("rows failed")[2]
    for said in ("row 1 of 4, optimizer.lr=0.05 ...\n", "row 1 of 4, optimizer.lr=0.05: accuracy "):
        assert said in first.stderr, "before it runs, and after"
    assert "on test data" not in first.stdout and "files in" not in first.stdout
    assert "Error executing" not in first.stderr, "what is listed needs no line of Hydra's"
    assert first.stderr.count("type a number above 0") == 2
    results = {path: json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")}
    assert sorted(result["status"] for result in results.values()) == ["diverged", "done", "done"]
    _, table = first.stdout.split("mlp, digits, 2 workers x 32, 2 steps")
    scores = {r["config"]["optimizer"]["lr"]: r["test"] for r in results.values() if "test" in r}
    for rate in (0.05, 0.1):
        (row,) = (line for line in table.splitlines() if f"qsgd optimizer.lr={rate} " in line)
        assert f" {scores[rate]['accuracy']:.2f} " in row
    assert "qsgd optimizer.lr=1e+30 (diverged, seed 1)" in table
    (picture,) = tmp_path.glob("figures/sweeps/mlp-digits-*.svg")
    assert f"{picture} .png .pdf" in first.stderr and picture.with_suffix(".pdf").exists()

    again = sweep(tmp_path, "optimizer.lr=0.05,1e30,0.1")
    assert "3 rows, 3 of them done before" in again.stderr
    assert "diverged before" in again.stderr and again.returncode == 1
    assert {
        path: json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")
    } == results
    assert "on test data" not in again.stdout, "finished rows are passed over in silence"


def test_rows_that_failed_for_one_reason_are_listed_under_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = compose("outputs=none")
    progress = SweepProgress([SweepRow(name) for name in "abc"])
    for reason in ("no such rank", "no such rank", "killed"):
        failed = JobReturn(status=JobStatus.FAILED, _return_value=RunFailed(reason))
        progress.on_job_end(config, failed)
    progress.on_multirun_end(config)
    outcome.listed.clear()
    assert caplog.messages[-1].partition("\n")[2] == "  no such rank:\n    a\n    b\n  c: killed"


def test_rows_of_other_processes_are_judged_by_their_results(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of a launcher of Hydra's, whose processes have copies of the callback."""
    config, wanted = compose(f"outputs={tmp_path}"), config_of(f"outputs={tmp_path}")
    progress = SweepProgress([SweepRow(str(tmp_path / name), wanted) for name in "abcd"])
    progress.rows.append(SweepRow("e", mistake="lr=-1: type a number above 0"))
    other = wanted.model_copy(update={"seed": 2})
    kept: list[tuple[str, RunConfig, Status, str | None]] = [
        ("a", wanted, "done", None),
        ("b", wanted, "failed", "out of memory"),
        ("c", other, "done", None),
    ]
    for name, ran, status, reason in kept:
        (tmp_path / name).mkdir()
        result = make_result(ran, Begun.here(), status, "").model_copy(update={"reason": reason})
        RunFiles(tmp_path / name).write_result(result)
    progress.process += 1
    failed = JobReturn(status=JobStatus.FAILED, _return_value=RunFailed("out of memory"))
    copy.deepcopy(progress).on_job_end(config, failed)
    assert failed.status is JobStatus.COMPLETED, "or Hydra would end the sweep"
    assert not outcome.listed and not caplog.messages, "the process that waits tells it"
    progress.on_multirun_end(config)
    reasons = [str(error) for error in outcome.listed]
    outcome.listed.clear()
    assert reasons == [
        "the run failed: out of memory",
        "it left no result",
        "it left no result",
        "lr=-1: type a number above 0",
    ]
    assert caplog.messages[-1].startswith("4 of 5 rows failed; ")
    assert f"it left no result:\n    {tmp_path / 'c'}\n    {tmp_path / 'd'}" in caplog.messages[-1]


def test_rows_in_folders_of_hydra_are_found_there(tmp_path: Path) -> None:
    """That is hydra.sweep.dir with hydra.sweep.subdir, from any working folder of the jobs."""
    outputs, folder = tmp_path / "outputs", tmp_path / "x"
    outputs.mkdir()
    typed = (f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=${hydra.job.num}/run")
    both = sweep(outputs, *typed, "hydra.job.chdir=true", "optimizer.lr=0.05,0.1", "verbose=true")
    assert both.returncode == 0, both.stderr
    assert both.stdout.count("files in ") == 2, "as that of single runs"
    rows = [folder / str(number) / "run" for number in range(2)]
    assert all((row / "result.json").exists() for row in rows)
    for number, rate in enumerate((0.05, 0.1), start=1):
        assert f"row {number} of 2, optimizer.lr={rate}: accuracy" in both.stderr
    assert "2 rows; 2 x about" in both.stderr, "equal names are no equal runs"
    assert all(f"qsgd optimizer.lr={rate} " in both.stdout for rate in (0.05, 0.1))
    assert list(outputs.glob("figures/sweeps/mlp-digits-*.png"))


def test_the_same_run_under_another_name_is_not_made_twice(tmp_path: Path) -> None:
    both = sweep(tmp_path, "name=one,other")
    assert both.returncode == 0
    assert (
        "2 rows, 1 of them the same run as another" in both.stderr and "row 2 of 2" in both.stderr
    )
    assert [path.parent.name.partition("+")[0] for path in tmp_path.glob("*/result.json")] == [
        "one"
    ]
    again = sweep(tmp_path, "name=third", "rerun=true")
    assert again.returncode == 0 and len(list(tmp_path.glob("*/result.json"))) == 2


def test_a_sweep_may_be_that_of_a_file(tmp_path: Path) -> None:
    """As Hydra has it: a primary file with the values of keys, and with the mode."""
    (tmp_path / "mine.yaml").write_text(
        "defaults: [config, _self_]\n"
        "hydra: {mode: MULTIRUN, sweeper: {params: {optimizer.lr: '0.05,0.1'}}}\n"
    )
    typed = (*OVERRIDES, "--config-dir", str(tmp_path), "--config-name", "mine")
    done = command(typed, tmp_path, os.environ, 300)
    assert done.returncode == 0, done.stderr
    assert "gcbench: 2 rows; 2 x about" in done.stderr
    assert "row 2 of 2, optimizer.lr=0.1: accuracy" in done.stderr
    assert len(list(tmp_path.glob("outputs/mlp-digits-qsgd*/result.json"))) == 2


def test_rows_go_to_the_directories_that_are_typed(tmp_path: Path) -> None:
    outputs, folders = tmp_path / "outputs", [tmp_path / "one", tmp_path / "two"]
    outputs.mkdir()
    typed = f"directory={','.join(map(str, folders))}"
    assert sweep(outputs, typed, "trainer.keep_weights=true").returncode == 0
    extended = sweep(outputs, typed, "trainer.max_steps=3")
    assert "2 rows; 2 x about" in extended.stderr and extended.returncode == 0
    for folder in folders:
        result = json.loads((folder / "result.json").read_text())
        assert [where["from_step"] for where in result["extended"]] == [2]
    assert not list(outputs.glob("*/result.json"))


@pytest.mark.slow
def test_configurations_of_ended_rows_are_not_kept(tmp_path: Path) -> None:
    """They would add up to hundreds of MiB in a sweep of a thousand rows."""
    (tmp_path / "mine.py").write_text("""
import gc, torch
from hydra.core.utils import JobReturn

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        ended = [one for one in gc.get_objects() if isinstance(one, JobReturn) and one.task_name]
        with open("kept", "a") as file:
            print(len(ended), sum(one.cfg is not None for one in ended), file=file)
""")
    short = [one for one in OVERRIDES if not one.startswith("model.")]
    done = command(
        ("-m", "model._target_=mine.Net", *short, "seed=1,2,3"), tmp_path, os.environ, 300
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kept").read_text().splitlines()[-1] == "2 0"


def test_a_row_that_another_sweep_runs_is_left_to_it(tmp_path: Path) -> None:
    long = ["trainer.max_steps=null", "trainer.epochs=100000", "trainer.log_every=1"]
    with ThreadPoolExecutor() as pool:
        other = pool.submit(sweep, tmp_path, *long)
        deadline = time.monotonic() + patience(60)
        while not list(tmp_path.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.1)
        (row,) = (path.parent for path in tmp_path.glob("*/run.lock"))
        process = int(row.joinpath("run.lock").read_text().split()[1])
        try:
            refused = sweep(tmp_path, *long, timeout=patience(60))
        finally:
            os.kill(process, signal.SIGINT)
    assert refused.returncode == 1
    assert "1 of 1 row failed; the same command tries them again" in refused.stderr
    assert f"is being run by process {process} on" in refused.stderr.partition("row failed")[2]
    assert other.result().returncode == 130
    assert json.loads((row / "result.json").read_text())["status"] == "interrupted"
    steps = [json.loads(line)["step"] for line in (row / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) > 1 and steps == sorted(steps), "one process's records"


@pytest.mark.parametrize(
    ("overrides", "status", "counts"),
    [
        ((), "done", True),
        ((), "diverged", True),
        ((), "failed", False),
        (("trainer.launcher=virtual",), "done", False),
        (("seed=2",), "done", False),
    ],
)
def test_what_counts_as_the_same_run(
    tmp_path: Path, overrides: tuple[str, ...], status: Status, counts: bool
) -> None:
    typed = ("name=one", f"outputs={tmp_path}")
    own_directory, asked = Path(run_directory(compose(*typed))), config_of(*typed)
    there = Path(run_directory(compose("name=other", f"outputs={tmp_path / 'deep'}", *overrides)))
    there.mkdir(parents=True)
    config = config_of("name=other", *overrides)
    RunFiles(there).write_result(make_result(config, Begun.here(), status, ""))
    assert find_same_run(asked, own_directory) == (there if counts else None)
    at_cpu = asked.model_copy(update={"choices": {**asked.choices, "budget": "cpu"}})
    assert find_same_run(at_cpu, own_directory) is None, "budgets are not mixed"
    assert find_same_run(asked, there) is None, "that is the row's own"


def test_rows_times_minutes() -> None:
    a, unknown = SweepRow("a", seconds=30), [SweepRow("a"), SweepRow("b")]
    for rows, says in (
        (
            [SweepRow("a", seconds=60), SweepRow("b", seconds=180)],
            "2 rows; 2 x about 2 min = 4 min",
        ),
        ([SweepRow("b", done=True), a], "2 rows, 1 of them done before; 1 x about 30 s = 30 s"),
        (
            [a, SweepRow("b", done=True, same="a")],
            "2 rows, 1 of them the same run as another (a); 1 x about 30 s = 30 s",
        ),
        (unknown, "2 rows; how long they take is not known before the first has run"),
        (
            [SweepRow("a", done=True)],
            "1 row, 1 of them done before; type rerun=true to run them again",
        ),
    ):
        assert plan_sentence(rows) == says


def five_minutes(folder: Path) -> None:
    times = {"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:05:00+00:00"}
    result = make_result(config_of(), Begun.here(), "done", "").model_copy(update=times)
    RunFiles(folder).write_result(result)


@pytest.mark.parametrize(
    ("one_by_one", "says"),
    [(True, "took 5 min; 1 to go, about 10 min"), (False, "took 5 min; 1 to go")],
)
def test_a_row_takes_what_its_result_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, one_by_one: bool, says: str
) -> None:
    """Waiting in a cluster's queue does not count, and times of parallel rows are not added."""
    five_minutes(tmp_path)
    rows = [SweepRow(str(tmp_path), seconds=30.0), SweepRow("b", seconds=60.0)]
    progress = SweepProgress(rows, one_by_one=one_by_one)
    with caplog.at_level("INFO", "gcbench"):
        progress.on_job_end(compose(), JobReturn(status=JobStatus.COMPLETED))
    assert caplog.messages == [f"row 1 of 2, {tmp_path}: {says}"]


def test_a_failed_row_does_not_shorten_the_time_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    five_minutes(tmp_path)
    seconds = {"failed": 600.0, str(tmp_path): 30.0, "next": 60.0}
    rows = [SweepRow(name, seconds=s) for name, s in seconds.items()]
    progress = SweepProgress(rows, started=time.monotonic())
    with caplog.at_level("INFO", "gcbench"):
        progress.on_job_end(compose(), JobReturn(status=JobStatus.FAILED))
        progress.on_job_end(compose(), JobReturn(status=JobStatus.COMPLETED))
    assert caplog.messages[-1].endswith("took 5 min; 1 to go, about 10 min")


def test_an_estimate_that_fails_leaves_the_threads_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    before = torch.get_num_threads()
    monkeypatch.setattr(estimate, "make_model", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        estimate._measure(config_of(f"trainer.threads={before + 1}", "trainer.launcher=virtual"))
    assert torch.get_num_threads() == before


TEXT = "model=gpt_bytes dataset=wikitext2_bytes"
WHOLE = START_SECONDS + 2.95 * 10 * 50  # seconds of ten epochs, with the start


def three_seconds_a_step(config: RunConfig, **facts: Any) -> Result:
    """Return the result of two epochs in 5 minutes."""
    return plain_result(
        steps=100,
        steps_per_epoch=50,
        choices=config.choices,
        config=config.as_dict(),
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:05:00+00:00",
        **facts,
    )


def test_what_a_run_took_tells_what_its_like_will_take() -> None:
    config = config_of("trainer.epochs=10")
    past = three_seconds_a_step(config)
    assert Estimates([past]).seconds(config) == WHOLE
    assert Estimates([past]).seconds(config_of("trainer.epochs=10", "trainer.workers=1")) != WHOLE
    short = past.model_copy(update={"steps": 2, "finished": "2026-01-01T00:00:06+00:00"})
    assert Estimates([short]).seconds(config) == START_SECONDS + 0.5 * 10 * 50


def test_a_network_of_other_widths_is_another_size() -> None:
    past = three_seconds_a_step(config_of("trainer.epochs=10"))
    wider = config_of("trainer.epochs=10", "model.widths=[512]")
    assert Estimates([past]).seconds(wider) != WHOLE


@pytest.mark.parametrize(
    ("key", "tokens"), [("dataset=synthetic dataset.samples", None), (f"{TEXT} dataset.size", 64)]
)
def test_an_epoch_of_more_samples_has_more_steps(key: str, tokens: int | None) -> None:
    before, now = (f"{key}={size}".split() for size in (1024, 4096))
    config = config_of("trainer.epochs=10", *before)
    past = three_seconds_a_step(config, tokens_per_sample=tokens)
    longer = config_of("trainer.epochs=10", *now)
    assert Estimates([past]).seconds(config) == WHOLE
    assert Estimates([past]).seconds(longer) == START_SECONDS + 4 * (WHOLE - START_SECONDS)


def test_a_continued_run_counts_by_the_steps_since_then() -> None:
    config = config_of("trainer.epochs=10")
    past = three_seconds_a_step(config, device="cpu", resumed_step=50)
    assert Estimates([past]).seconds(config) == START_SECONDS + 2 * (WHOLE - START_SECONDS)
    ended_before = past.model_copy(update={"resumed_step": 100})
    assert Estimates([ended_before]).core_seconds(config.as_dict(), "cpu") is None


def test_core_seconds_follow_from_runs_of_the_same_work_alone() -> None:
    config = config_of("trainer.epochs=10")
    past = three_seconds_a_step(config, device="cpu", processes=2, threads=2)
    estimates = Estimates([past])
    # A step took 3 s on four cores, whatever number of threads is asked for now.
    other_threads = values_of("trainer.epochs=10", "trainer.threads=1")
    assert estimates.core_seconds(other_threads, "cpu") == 4 * WHOLE
    assert estimates.core_seconds(values_of("compressor=none"), "cpu") is not None
    paused = past.model_copy(update={"finished": "2026-01-01T01:05:00+00:00"})
    assert Estimates([past, paused]).core_seconds(other_threads, "cpu") == 4 * WHOLE
    wider = values_of("model.widths=[512]")
    assert estimates.core_seconds(wider, "cpu") is None
    assert estimates.core_seconds(config.as_dict(), "cuda") is None


def test_a_size_never_seen_is_tried_and_missing_data_is_left_to_the_run(tmp_path: Path) -> None:
    estimates = Estimates([])
    seconds = estimates.seconds(config_of("trainer.epochs=100000", "trainer.launcher=virtual"))
    assert seconds is not None and seconds > START_SECONDS
    assert (
        estimates.seconds(
            config_of("dataset=cifar10", "dataset.download=false", f"data.root={tmp_path}")
        )
        is None
    )


def test_estimates_are_those_of_the_same_method_and_of_gpus_not_of_their_threads() -> None:
    config, dense = (config_of("trainer.epochs=10", f"compressor={c}") for c in ("qsgd", "none"))
    slower = three_seconds_a_step(dense).model_copy(
        update={"finished": "2026-01-01T00:10:00+00:00"}
    )
    estimates = Estimates([three_seconds_a_step(config), slower])
    assert [estimates.seconds(c) for c in (config, dense)] == [
        WHOLE,
        START_SECONDS + 5.95 * 10 * 50,
    ]
    on_gpus = three_seconds_a_step(config, device="cuda", processes=2, threads=8)
    assert Estimates([on_gpus]).core_seconds(config.as_dict(), "cuda") == 2 * WHOLE


def test_virtual_workers_are_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this clock a gradient takes 1 s; 1437 samples are 22 steps of four batches of 16."""
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=count().__next__))
    typed = ["trainer.workers=4", "trainer.launcher=virtual", "trainer.batch_size=16"]
    assert Estimates([]).seconds(config_of(*typed, "trainer.epochs=1")) == START_SECONDS + 4 * 22
