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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from needed import patience, skip
from nightly import slow_but

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
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
        environment = {
            **os.environ,
            "GCBENCH_CLUSTER": f"{folder}/cluster",
            "SLURM_CONF": f"{folder}/cluster/slurm.conf",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command, wait = SCRIPTS / "cluster", patience(120)
        up = subprocess.run(
            [command, "up"], env=environment, capture_output=True, text=True, timeout=wait
        )
        if "not found; type apt-get install" in up.stderr:
            skip("slurm", up.stderr.strip())
        assert up.returncode == 0, up.stderr
        try:
            yield environment
        finally:
            subprocess.run([command, "down"], env=environment, check=True, timeout=wait)
            assert not Path(environment["GCBENCH_CLUSTER"]).exists()


class Here(NamedTuple):
    """A folder in which commands for the cluster are typed."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=patience(170),
        )

    def submit(self, *more: str | Path) -> str:
        """Submit a job and return its number."""
        job = self.run("sbatch", "--parsable", *more)
        assert job.returncode == 0, job.stderr
        return job.stdout.strip()

    def submit_example(self, *overrides: str, options: Sequence[str] = ()) -> str:
        narrow = ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0")
        return self.submit(*narrow, *options, SCRIPTS / "examples" / "example.sbatch", *overrides)

    @contextmanager
    def sweep(self, *overrides: str) -> Iterator[subprocess.Popen[str]]:
        """Start a sweep of jobs on two nodes, which are killed if the test fails."""
        typed = ["gcbench", "-m", "hydra/launcher=submitit_slurm", *overrides]
        typed += ["trainer.nodes=2", "trainer.workers=2"]
        started = subprocess.Popen(
            typed, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        try:
            yield started
        finally:
            started.kill()

    def signal_jobs(self) -> None:
        self.run(*"scancel --signal=USR2 --name=gcbench --state=RUNNING".split())

    def statuses(self) -> list[str]:
        return [r["status"] for r in results(self.folder)]

    def losses(self) -> list[tuple[int, float]]:
        return losses(self.folder)

    def ends_as(self, losses: list[tuple[int, float]], job: str) -> None:
        """Wait for a job that was queued again, and compare its losses."""
        wait_for(lambda: self.statuses() == ["done"])
        assert "continuing from the checkpoint" in (self.folder / f"slurm-{job}.out").read_text()
        assert self.losses() == losses

    def jobs(self) -> list[str]:
        """Return a line for every job that was submitted from this folder."""
        listed = self.run(
            *"sacct --noheader --parsable2 --allocations --format=WorkDir,State".split()
        )
        return [line for line in listed.stdout.splitlines() if line.startswith(f"{self.folder}|")]


@pytest.fixture
def here(cluster: dict[str, str], tmp_path: Path) -> Here:
    return Here(tmp_path, cluster)


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("outputs/*/result.json"))]


def losses(folder: Path) -> list[tuple[int, float]]:
    files = folder.glob("outputs/*/metrics.jsonl")
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def wait_for(condition: Any, seconds: float = 100) -> None:
    end = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


Losses = Callable[[], list[tuple[int, float]]]


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Losses]:
    """Start the run that LONG describes without Slurm; return a function that awaits its losses."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = [
        sys.executable,
        "-m",
        "gcbench",
        *LONG,
        "trainer.workers=2",
        "trainer.launcher=local",
    ]
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


@pytest.mark.capability
@pytest.mark.parametrize("tasks", slow_but([1], [1, 2]))
def test_srun_joins_the_tasks_of_two_nodes(here: Here, tasks: int) -> None:
    job = ("srun", "--nodes=2", f"--ntasks-per-node={tasks}", "gcbench", *QUICK)
    shape = (f"trainer.workers={2 * tasks}", "trainer.max_steps=5", "trainer.launcher=slurm")
    done = here.run(*job, *shape)
    assert done.returncode == 0, done.stderr
    (result,) = results(here.folder)
    facts = (result["status"], result["launcher"], result["processes"], result["threads"])
    assert facts == ("done", "slurm", 2 * tasks, 1)
    assert done.stdout.count("files in ") == 1  # one process shows the result


@pytest.mark.slow
def test_the_example_is_queued_again_when_it_is_signalled(here: Here, undisturbed: Losses) -> None:
    job = here.submit_example(*LONG)
    wait_for(here.losses)
    here.run("scancel", "--signal=USR2", job)
    wait_for(lambda: here.statuses() == ["interrupted"])
    assert here.losses()[-1][0] < 300
    here.ends_as(undisturbed(), job)


@pytest.mark.slow
def test_a_job_that_was_killed_goes_on_when_it_is_queued_again(
    here: Here, undisturbed: Losses
) -> None:
    job = here.submit_example(*LONG, "trainer.checkpoint_steps=7")

    def runs() -> bool:
        return "RUNNING" in here.run("squeue", "--noheader", "--format=%T", f"--jobs={job}").stdout

    for step, kill in ((30, ["scancel", "--signal=KILL"]), (100, ["scontrol", "requeue"])):
        wait_for(lambda step=step: here.losses()[-1:] >= [(step, 0.0)])
        here.run(*kill, job)
        wait_for(lambda: not runs())
        if kill[0] == "scancel":
            here.run("scontrol", "requeue", job)
    here.ends_as(undisturbed(), job)


@pytest.mark.slow
def test_workers_of_one_task_are_queued_again_when_it_is_signalled(here: Here) -> None:
    """With trainer.launcher=local, the parent process receives the signal."""
    script = here.folder / "job.sbatch"
    command = f"exec gcbench trainer.launcher=local trainer.workers=2 {' '.join(LONG)}"
    script.write_text(f"#!/bin/bash\n{command}\n")
    job = here.submit("--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", script)
    wait_for(here.losses)
    here.run("scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: here.statuses() == ["interrupted"])
    wait_for(lambda: here.statuses() == ["done"])
    assert "continuing from the checkpoint" in (here.folder / f"slurm-{job}.out").read_text()


@pytest.mark.slow
def test_a_run_that_makes_way_for_an_urgent_job_goes_on_after_it(
    here: Here, undisturbed: Losses
) -> None:
    job = here.submit_example(*LONG, options=["--exclusive"])
    wait_for(here.losses)
    urgent = here.run(*"srun --partition=urgent --nodes=2 --exclusive true".split())
    assert urgent.returncode == 0, urgent.stderr
    assert here.statuses() == ["interrupted"]
    here.ends_as(undisturbed(), job)


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
def test_what_the_cluster_does_not_have(here: Here, override: str, says: str) -> None:
    arguments = ["-m", "hydra/launcher=submitit_slurm", *QUICK, "trainer.workers=4", override]
    done = here.run("gcbench", *arguments)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )


def run_failing(here: Here, ends: str) -> subprocess.CompletedProcess[str]:
    """Run a sweep over how a worker ends."""
    (here.folder / "mine.py").write_text(FAILING)
    model = ("model._target_=mine.Net", f"+model.end={ends}")
    quick = [override for override in QUICK if "widths" not in override]
    shape = ("trainer.nodes=2", "trainer.workers=2", "trainer.max_steps=9")
    return here.run("gcbench", "-m", "hydra/launcher=submitit_slurm", *model, *shape, *quick)


@pytest.mark.slow
def test_a_sweep_is_one_job_a_point_and_a_failure_is_one(here: Here) -> None:
    done = run_failing(here, "raise,null")
    says = "worker 1 failed: ValueError: the cat is on the wire"
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    reasons = {r["status"]: r["reason"] for r in results(here.folder)}
    assert reasons == {"done": None, "failed": "worker 1: ValueError: the cat is on the wire"}
    (whole,) = (r for r in results(here.folder) if r["status"] == "done")
    assert (whole["config"]["trainer"]["nodes"], whole["workers"]) == (2, 2)
    # A job ends shortly after it has written its result.
    listed = "sacct --noheader --allocations --format=State".split()
    wait_for(lambda: {"FAILED", "COMPLETED"} <= set(here.run(*listed).stdout.split()))


@pytest.mark.slow
def test_points_of_a_sweep_share_one_allocation(here: Here) -> None:
    packed = ["hydra.launcher.points_per_job=4", "hydra.launcher.points_at_once=2"]
    steps = "trainer.max_steps=3000"  # takes seconds, so that times show what ran at once
    overrides = [*QUICK, "trainer.workers=1", steps, "optimizer.lr=0.1,1e30,0.2,0.3"]
    done = here.run("gcbench", "-m", "hydra/launcher=submitit_slurm", *packed, *overrides)
    assert done.returncode == 1 and "1 of 4 rows failed" in done.stderr, done.stderr
    assert len(here.jobs()) == 1
    ended = sorted((r["status"], r["launcher"], r["processes"]) for r in results(here.folder))
    assert ended == [("diverged", "local", 1), *[("done", "local", 1)] * 3]
    by_rate = {r["config"]["optimizer"]["lr"]: r for r in results(here.folder)}
    # Rate 0.3 is the second task's second point; its first one, 1e30, diverges at once.
    beside = [(by_rate[rate]["started"], by_rate[rate]["finished"]) for rate in (0.1, 0.3)]
    assert max(start for start, _ in beside) < min(end for _, end in beside), "at once"


@pytest.mark.slow
def test_a_job_of_several_points_goes_on_with_the_point_at_which_it_was_signalled(
    here: Here,
) -> None:
    def statuses() -> dict[float, str]:
        return {r["config"]["optimizer"]["lr"]: r["status"] for r in results(here.folder)}

    with here.sweep(*LONG, "hydra.launcher.points_per_job=2", "optimizer.lr=0.2,0.1") as sweep:
        wait_for(lambda: statuses() == {0.2: "done"})
        finished = results(here.folder)[0]["finished"]
        wait_for(lambda: len(list(here.folder.glob("outputs/*/metrics.jsonl"))) == 2)
        here.signal_jobs()
        wait_for(lambda: statuses() == {0.2: "done", 0.1: "interrupted"})
        _, stderr = sweep.communicate(timeout=patience(170))
    assert sweep.returncode == 0, stderr
    assert statuses() == {0.2: "done", 0.1: "done"} and len(here.jobs()) == 1
    assert finished in [r["finished"] for r in results(here.folder)], "not run again"


@pytest.mark.slow
def test_a_sweep_waits_for_a_job_that_was_queued_again(here: Here, undisturbed: Losses) -> None:
    with here.sweep(*LONG) as sweep:
        wait_for(here.losses)
        here.signal_jobs()
        wait_for(lambda: here.statuses() == ["interrupted"])
        _, stderr = sweep.communicate(timeout=patience(170))
    assert sweep.returncode == 0, stderr
    assert here.statuses() == ["done"]
    assert here.losses() == undisturbed()


@pytest.mark.slow
def test_a_killed_task_is_a_failed_point(here: Here) -> None:
    done = run_failing(here, "kill")
    assert done.returncode == 1 and "1 of 1 row failed" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_cancelled_job_is_a_failed_point(here: Here) -> None:
    with here.sweep(*ENDLESS) as sweep:
        wait_for(here.losses)
        here.run("scancel", "--name=gcbench")
        _, stderr = sweep.communicate(timeout=patience(170))
    assert sweep.returncode == 1 and "ended as CANCELLED" in stderr, stderr


@pytest.mark.slow
def test_what_scancel_ends_is_not_queued_again(here: Here) -> None:
    job = here.submit_example(*ENDLESS)
    wait_for(here.losses)
    here.run("scancel", job)
    wait_for(lambda: here.statuses() == ["interrupted"])
    assert any(here.folder.glob("outputs/*/checkpoints/step-*/manifest.json"))
    wait_for(lambda: "CANCELLED" in here.run("sacct", "-nXj", job, "-oState").stdout)


@pytest.mark.slow
def test_two_local_sweeps_at_once(tmp_path: Path) -> None:
    if find_spec("submitit") is None:
        skip("submitit", "a local sweep is sent by it")
    command = [sys.executable, "-m", "gcbench", "-m", "hydra/launcher=submitit_local", *QUICK]
    command += ["trainer.max_steps=5", "trainer.workers=2", "trainer.launcher=local", "seed=1,2"]
    sweeps = [
        subprocess.Popen(
            [*command, f"compressor={name}"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        for name in ("qsgd", "powersgd")
    ]
    try:
        stderr = [sweep.communicate(timeout=patience(500))[1] for sweep in sweeps]
    finally:
        for sweep in sweeps:
            sweep.kill()
    assert [sweep.returncode for sweep in sweeps] == [0, 0], stderr
    ended = [
        (r["choices"]["compressor"], r["config"]["seed"], r["status"]) for r in results(tmp_path)
    ]
    expected = [(name, seed, "done") for name in ("powersgd", "qsgd") for seed in (1, 2)]
    assert sorted(ended) == expected
