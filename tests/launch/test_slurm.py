"""Runs on a real Slurm of two nodes, which scripts/cluster brings up on this machine."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from needed import patience, skip
from nightly import slow_but

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
QUICK = [
    *"model.widths=[16] logger.mode=disabled min_size=0 trainer.device=cpu".split(),
    "trainer.threads=1",
]
LONG = [
    *QUICK,
    *"trainer.max_steps=300 trainer.epochs=100 trainer.log_every=10".split(),
    "trainer.eval_every=null",
]
# No machine finishes this before the test ends it.
ENDLESS = [*QUICK, "trainer.max_steps=1000000", "trainer.epochs=100000"]
FAILING = """
import os, torch
class Net(torch.nn.Linear):
    def __init__(self, end):
        super().__init__(64, 10)
        self.end, self.calls = end, 0
    def forward(self, x):
        self.calls += 1
        if os.environ["SLURM_PROCID"] == "1" and self.calls == 5:
            if self.end == "raise": raise ValueError("the cat is on the wire")
            if self.end == "kill": os.kill(os.getpid(), 9)
        return super().forward(x.flatten(1))
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """Start a cluster, and return the environment variables for commands that use it."""
    with tempfile.TemporaryDirectory(prefix="gcbench-slurm-") as folder:
        variables = {
            "GCBENCH_CLUSTER": f"{folder}/cluster",
            "SLURM_CONF": f"{folder}/cluster/slurm.conf",
        }
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {
            **os.environ,
            **variables,
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        up = subprocess.run(
            [SCRIPTS / "cluster", "up"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(120),
        )
        if "not found; type apt-get install" in up.stderr:
            skip("slurm", up.stderr.strip())
        assert up.returncode == 0, up.stderr
        try:
            yield environment
        finally:
            subprocess.run(
                [SCRIPTS / "cluster", "down"], env=environment, check=True, timeout=patience(60)
            )
            assert not Path(variables["GCBENCH_CLUSTER"]).exists()


def run(
    *command: str | Path, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(170),
    )


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("outputs/*/result.json"))]


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = [
        line
        for path in folder.glob("outputs/*/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [(line["step"], line["loss"]) for line in map(json.loads, lines) if "loss" in line]


def wait_for(condition: Any, seconds: float = 100) -> None:
    end = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


@pytest.fixture
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], list[tuple[int, float]]]]:
    """Start the run that LONG describes without Slurm; return a function that awaits its losses."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, "-m", "gcbench", *LONG, "trainer.gpus=2", "trainer.launcher=local"]
    reference = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        yield lambda: losses(folder) if reference.wait(patience(200)) == 0 else []
    finally:
        reference.kill()


def test_every_daemon_listens_on_this_machine_only(cluster: dict[str, str]) -> None:
    belongs = runpy.run_path(str(SCRIPTS / "cluster"))["belongs"]
    listed = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True, check=True).stdout
    places = [
        line.split()[3]
        for line in listed.splitlines()
        for pid in re.findall(r"pid=(\d+)", line)
        if belongs(int(pid), Path(cluster["GCBENCH_CLUSTER"]))
    ]
    # The controller, its database and two nodes; MariaDB and munge have sockets in the folder.
    assert len(places) >= 4 and [place for place in places if not place.startswith("127.")] == []


@pytest.mark.parametrize("tasks", slow_but([1], [1, 2]))
def test_srun_joins_the_tasks_of_two_nodes(
    cluster: dict[str, str], tmp_path: Path, tasks: int
) -> None:
    overrides = [
        *QUICK,
        f"trainer.gpus={2 * tasks}",
        "trainer.max_steps=5",
        "trainer.launcher=slurm",
    ]
    done = run(
        "srun",
        "--nodes=2",
        f"--ntasks-per-node={tasks}",
        "gcbench",
        *overrides,
        folder=tmp_path,
        environment=cluster,
    )
    assert done.returncode == 0, done.stderr
    (result,) = results(tmp_path)
    facts = (result["status"], result["launcher"], result["processes"], result["threads"])
    assert facts == ("done", "slurm", 2 * tasks, 1)
    assert done.stdout.count("status") == 1


@pytest.mark.slow
def test_the_example_is_queued_again_when_it_is_signalled(
    cluster: dict[str, str], undisturbed: Callable[[], list[tuple[int, float]]], tmp_path: Path
) -> None:
    narrow = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--parsable"]
    job = run(
        "sbatch", *narrow, SCRIPTS / "example.sbatch", *LONG, folder=tmp_path, environment=cluster
    )
    assert job.returncode == 0, job.stderr
    number = job.stdout.strip()
    wait_for(lambda: losses(tmp_path))
    run("scancel", "--signal=USR2", number, folder=tmp_path, environment=cluster)
    wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["interrupted"])
    assert losses(tmp_path)[-1][0] < 300
    log = tmp_path / f"slurm-{number}.out"
    wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["done"])
    assert "continuing from the checkpoint" in log.read_text()
    assert losses(tmp_path) == undisturbed()


@pytest.mark.slow
def test_a_job_that_was_killed_goes_on_when_it_is_queued_again(
    cluster: dict[str, str], undisturbed: Callable[[], list[tuple[int, float]]], tmp_path: Path
) -> None:
    narrow = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--parsable"]
    overrides = [*LONG, "trainer.checkpoint_steps=7"]
    job = run(
        *("sbatch", *narrow, SCRIPTS / "example.sbatch", *overrides),
        folder=tmp_path,
        environment=cluster,
    )
    assert job.returncode == 0, job.stderr
    number = job.stdout.strip()

    def runs() -> bool:
        listed = ["squeue", "--noheader", "--format=%T", f"--jobs={number}"]
        return "RUNNING" in run(*listed, folder=tmp_path, environment=cluster).stdout

    for step, kill in ((30, ["scancel", "--signal=KILL"]), (100, ["scontrol", "requeue"])):
        wait_for(lambda step=step: losses(tmp_path)[-1:] >= [(step, 0.0)])
        run(*kill, number, folder=tmp_path, environment=cluster)
        wait_for(lambda: not runs())
        if kill[0] == "scancel":
            run("scontrol", "requeue", number, folder=tmp_path, environment=cluster)
    wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["done"])
    assert "continuing from the checkpoint" in (tmp_path / f"slurm-{number}.out").read_text()
    assert losses(tmp_path) == undisturbed()


@pytest.mark.slow
def test_workers_of_one_task_are_queued_again_when_it_is_signalled(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    """With trainer.launcher=local, the parent process receives the signal."""
    script = tmp_path / "job.sbatch"
    script.write_text(
        "#!/bin/bash\nexec gcbench trainer.launcher=local trainer.gpus=2 " + " ".join(LONG) + "\n"
    )
    arguments = ["--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", "--parsable"]
    job = run("sbatch", *arguments, script, folder=tmp_path, environment=cluster)
    assert job.returncode == 0, job.stderr
    number = job.stdout.strip()
    wait_for(lambda: losses(tmp_path))
    run("scancel", "--batch", "--signal=USR2", number, folder=tmp_path, environment=cluster)
    wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["interrupted"])
    wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["done"])
    assert "continuing from the checkpoint" in (tmp_path / f"slurm-{number}.out").read_text()


@pytest.mark.slow
def test_a_run_that_makes_way_for_an_urgent_job_goes_on_after_it(
    cluster: dict[str, str], undisturbed: Callable[[], list[tuple[int, float]]], tmp_path: Path
) -> None:
    narrow = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--exclusive", "--parsable"]
    job = run(
        "sbatch", *narrow, SCRIPTS / "example.sbatch", *LONG, folder=tmp_path, environment=cluster
    ).stdout.strip()
    wait_for(lambda: losses(tmp_path))
    urgent = run(
        *"srun --partition=urgent --nodes=2 --exclusive true".split(),
        folder=tmp_path,
        environment=cluster,
    )
    assert urgent.returncode == 0, urgent.stderr
    assert [r["status"] for r in results(tmp_path)] == ["interrupted"]
    wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["done"])
    assert "continuing from the checkpoint" in (tmp_path / f"slurm-{job}.out").read_text()
    assert losses(tmp_path) == undisturbed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("hydra.launcher.partition=fast", "the cluster has no such partition; type main or urgent"),
        (
            "hydra.launcher.constraint=fast",
            "sbatch says 'Batch job submission failed: Invalid feature specification'",
        ),
        ("trainer.nodes=4", "trainer.nodes=4: the cluster's partitions have 2 nodes"),
        ("hydra.launcher.points_at_once=8", "points_at_once=8: a job has points_per_job=1 points"),
    ],
)
def test_what_the_cluster_does_not_have(
    cluster: dict[str, str], tmp_path: Path, override: str, says: str
) -> None:
    arguments = ["-m", "hydra/launcher=submitit_slurm", *QUICK, "trainer.gpus=4", override]
    done = run("gcbench", *arguments, folder=tmp_path, environment=cluster)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )


@pytest.mark.slow
def test_a_sweep_is_one_job_a_point_and_a_failure_is_one(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FAILING)
    overrides = [
        *"model._target_=mine.Net +model.end=raise,null trainer.nodes=2 trainer.gpus=2".split(),
        "trainer.max_steps=9",
    ]
    quick = [override for override in QUICK if "widths" not in override]
    sweep = ["-m", "hydra/launcher=submitit_slurm", *overrides, *quick]
    done = run("gcbench", *sweep, folder=tmp_path, environment=cluster)
    assert (
        done.returncode == 1
        and "worker 1 failed: ValueError: the cat is on the wire" in done.stderr
    ), done.stderr
    assert "Traceback" not in done.stderr
    reasons = {r["status"]: r["reason"] for r in results(tmp_path)}
    assert reasons == {"done": None, "failed": "worker 1: ValueError: the cat is on the wire"}
    assert {
        (r["config"]["trainer"]["nodes"], r["workers"])
        for r in results(tmp_path)
        if r["status"] == "done"
    } == {(2, 2)}
    # A job ends shortly after it has written its result.
    listed = "sacct --noheader --allocations --format=State".split()
    wait_for(
        lambda: (
            {"FAILED", "COMPLETED"}
            <= set(run(*listed, folder=tmp_path, environment=cluster).stdout.split())
        )
    )


def jobs_of(folder: Path, environment: dict[str, str]) -> list[str]:
    """Return a line for every job that was submitted from this folder."""
    listed = run(
        *["sacct", "--noheader", "--parsable2", "--allocations", "--format=WorkDir,State"],
        folder=folder,
        environment=environment,
    )
    return [line for line in listed.stdout.splitlines() if line.startswith(f"{folder}|")]


@pytest.mark.slow
def test_points_of_a_sweep_share_one_allocation(cluster: dict[str, str], tmp_path: Path) -> None:
    packed = ["hydra.launcher.points_per_job=4", "hydra.launcher.points_at_once=2"]
    steps = "trainer.max_steps=3000"  # takes seconds, so that times show what ran at once
    overrides = [*QUICK, "trainer.gpus=1", steps, "optimizer.lr=0.1,1e30,0.2,0.3"]
    sweep = ["-m", "hydra/launcher=submitit_slurm", *packed, *overrides]
    done = run("gcbench", *sweep, folder=tmp_path, environment=cluster)
    assert done.returncode == 1 and "1 of 4 rows failed" in done.stderr, done.stderr
    assert len(jobs_of(tmp_path, cluster)) == 1
    ended = sorted((r["status"], r["launcher"], r["processes"]) for r in results(tmp_path))
    assert ended == [("diverged", "local", 1), *[("done", "local", 1)] * 3]
    by_rate = {r["config"]["optimizer"]["lr"]: r for r in results(tmp_path)}
    # Rate 0.3 is the second task's second point; its first one, 1e30, diverges at once.
    beside = [(by_rate[rate]["started"], by_rate[rate]["finished"]) for rate in (0.1, 0.3)]
    assert max(start for start, _ in beside) < min(end for _, end in beside), "at once"


@pytest.mark.slow
def test_a_job_of_several_points_goes_on_with_the_point_at_which_it_was_signalled(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    packed = ["hydra.launcher.points_per_job=2", "optimizer.lr=0.2,0.1"]
    overrides = [*LONG, "trainer.nodes=2", "trainer.gpus=2", *packed]
    sweep = subprocess.Popen(
        ["gcbench", "-m", "hydra/launcher=submitit_slurm", *overrides],
        cwd=tmp_path,
        env=cluster,
        stderr=subprocess.PIPE,
        text=True,
    )

    def statuses() -> dict[float, str]:
        return {r["config"]["optimizer"]["lr"]: r["status"] for r in results(tmp_path)}

    try:
        wait_for(lambda: statuses() == {0.2: "done"})
        finished = results(tmp_path)[0]["finished"]
        wait_for(lambda: len(list(tmp_path.glob("outputs/*/metrics.jsonl"))) == 2)
        end = ["scancel", "--signal=USR2", "--name=gcbench", "--state=RUNNING"]
        run(*end, folder=tmp_path, environment=cluster)
        wait_for(lambda: statuses() == {0.2: "done", 0.1: "interrupted"})
        _, stderr = sweep.communicate(timeout=patience(170))
    finally:
        sweep.kill()
    assert sweep.returncode == 0, stderr
    assert statuses() == {0.2: "done", 0.1: "done"} and len(jobs_of(tmp_path, cluster)) == 1
    assert finished in [r["finished"] for r in results(tmp_path)], "not run again"


@pytest.mark.slow
def test_a_sweep_waits_for_a_job_that_was_queued_again(
    cluster: dict[str, str], undisturbed: Callable[[], list[tuple[int, float]]], tmp_path: Path
) -> None:
    arguments = ["-m", "hydra/launcher=submitit_slurm", *LONG, "trainer.nodes=2", "trainer.gpus=2"]
    sweep = subprocess.Popen(
        ["gcbench", *arguments], cwd=tmp_path, env=cluster, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: losses(tmp_path))
        run(
            *"scancel --signal=USR2 --name=gcbench --state=RUNNING".split(),
            folder=tmp_path,
            environment=cluster,
        )
        wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["interrupted"])
        _, stderr = sweep.communicate(timeout=patience(170))
    finally:
        sweep.kill()
    assert sweep.returncode == 0, stderr
    assert [r["status"] for r in results(tmp_path)] == ["done"]
    assert losses(tmp_path) == undisturbed()


@pytest.mark.slow
def test_a_killed_task_is_a_failed_point(cluster: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILING)
    overrides = [
        *"model._target_=mine.Net +model.end=kill trainer.nodes=2 trainer.gpus=2".split(),
        "trainer.max_steps=9",
    ]
    quick = [override for override in QUICK if "widths" not in override]
    done = run(
        *"gcbench -m hydra/launcher=submitit_slurm".split(),
        *overrides,
        *quick,
        folder=tmp_path,
        environment=cluster,
    )
    assert done.returncode == 1 and "1 of 1 row failed" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_cancelled_job_is_a_failed_point(cluster: dict[str, str], tmp_path: Path) -> None:
    arguments = [
        "-m",
        "hydra/launcher=submitit_slurm",
        *ENDLESS,
        "trainer.nodes=2",
        "trainer.gpus=2",
    ]
    sweep = subprocess.Popen(
        ["gcbench", *arguments], cwd=tmp_path, env=cluster, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: losses(tmp_path))
        run("scancel", "--name=gcbench", folder=tmp_path, environment=cluster)
        _, stderr = sweep.communicate(timeout=patience(170))
    finally:
        sweep.kill()
    assert sweep.returncode == 1 and "ended as CANCELLED" in stderr, stderr


@pytest.mark.slow
def test_what_scancel_ends_is_not_queued_again(cluster: dict[str, str], tmp_path: Path) -> None:
    narrow = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--parsable"]
    job = run(
        "sbatch",
        *narrow,
        SCRIPTS / "example.sbatch",
        *ENDLESS,
        folder=tmp_path,
        environment=cluster,
    ).stdout.strip()
    wait_for(lambda: losses(tmp_path))
    run("scancel", job, folder=tmp_path, environment=cluster)
    wait_for(lambda: [r["status"] for r in results(tmp_path)] == ["interrupted"])
    assert any(tmp_path.glob("outputs/*/checkpoints/step-*/manifest.json"))
    wait_for(
        lambda: (
            "CANCELLED"
            in run("sacct", "-nXj", job, "-oState", folder=tmp_path, environment=cluster).stdout
        )
    )


@pytest.mark.slow
def test_two_local_sweeps_at_once(tmp_path: Path) -> None:
    if find_spec("submitit") is None:
        skip("submitit", "a local sweep is sent by it")
    arguments = [
        "-m",
        "hydra/launcher=submitit_local",
        *QUICK,
        *"trainer.max_steps=5 trainer.gpus=2 trainer.launcher=local".split(),
    ]
    command = [sys.executable, "-m", "gcbench", *arguments]
    sweeps = [
        subprocess.Popen(
            [*command, f"compressor={name}", "seed=1,2"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("qsgd", "powersgd")
    ]
    try:
        stderr = [sweep.communicate(timeout=patience(500))[1] for sweep in sweeps]
    finally:
        for sweep in sweeps:
            sweep.kill()
    assert [sweep.returncode for sweep in sweeps] == [0, 0], stderr
    assert sorted(
        (r["choices"]["compressor"], r["config"]["seed"], r["status"]) for r in results(tmp_path)
    ) == [(name, seed, "done") for name in ("powersgd", "qsgd") for seed in (1, 2)]
