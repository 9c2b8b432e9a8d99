"""Slurm's variables, and the job that a run asks for; these tests need no Slurm."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nightly import each
from sentence import config_of, run
from slurm_step import STEP

from gcbench.core.errors import ConfigError
from gcbench.runner.launch import failure, slurm
from gcbench.runner.launch.failure import failure_of, first_failure, forget_notes
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.launch.slurm import ClusterResources


@each(
    ("node_list", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[003-007,9],fast1", "gpu003"),
        ("rack[1-2]n[07,9]-ib", "rack1n07-ib"),
        ("127.0.0.[1-2]", "127.0.0.1"),
    ],
)
def test_the_first_host(node_list: str, host: str) -> None:
    assert slurm.first_host(node_list) == host


@each(
    ("counts", "node", "local_tasks"),
    [("2(x2)", 1, 2), ("3,1", 0, 3), ("3,1", 1, 1), ("2(x3),1", 3, 1)],
)
def test_tasks_of_this_node(counts: str, node: int, local_tasks: int) -> None:
    assert (
        slurm.tasks_here({"SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": str(node)})
        == local_tasks
    )


def test_torch_finds_what_it_looks_for() -> None:
    variables = slurm.torch_environment(STEP, Path("/runs/a"))
    port = int(variables.pop("MASTER_PORT"))
    assert variables == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu003",
    }
    assert port in slurm.PORTS
    others = [
        ({**STEP, "SLURM_JOB_ID": "18"}, "a"),
        ({**STEP, "SLURM_STEP_ID": "1"}, "a"),
        (STEP, "b"),
    ]
    assert port not in {
        int(slurm.torch_environment(e, Path("/runs") / d)["MASTER_PORT"]) for e, d in others
    }
    chosen = slurm.torch_environment(
        {**STEP, "MASTER_ADDR": "head", "MASTER_PORT": "5"}, Path("/runs/a")
    )
    assert (chosen["MASTER_ADDR"], chosen["MASTER_PORT"]) == ("head", "5")


def test_the_variables_go_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in STEP.items():
        monkeypatch.setenv(key, value)
    with slurm.torchrun_environment(Path("/runs/a")):
        assert os.environ["RANK"] == "3"
    assert "RANK" not in os.environ and os.environ["SLURM_PROCID"] == "3"


def test_only_jobs_hear_the_signal_to_queue_again() -> None:
    assert slurm.REQUEUE not in slurm.stop_signals({}) and slurm.REQUEUE in slurm.stop_signals(STEP)
    assert signal.SIGTERM in slurm.stop_signals({})


@pytest.mark.parametrize(("name", "requeues"), [("SIGTERM", ""), ("SIGUSR2", "requeue 17")])
def test_only_that_signal_queues_a_job_again(
    name: str, requeues: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything else that stops a run, such as scancel, ends its job."""
    script(tmp_path, "scontrol", f"echo $* >> {tmp_path}/told")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
    (tmp_path / "told").touch()
    model = {"_target_": "faulty.Faulty", "fault": name, "at": 3, "rank": 0}
    overrides = [f"{'' if key == '_target_' else '+'}model.{key}={v}" for key, v in model.items()]
    overrides += [f"+model.spent={tmp_path / 'spent'}", "trainer.launcher=virtual"]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", *overrides, "trainer.max_steps=9")
    assert (tmp_path / "told").read_text().strip() == requeues
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "interrupted"


@each(
    ("overrides", "gpus_here", "shape"),
    [
        (["trainer.nodes=2", "trainer.workers=16"], True, (2, 8, 8)),
        (["trainer.nodes=2", "trainer.workers=16"], False, (2, 8, None)),
        (["trainer.nodes=2", "trainer.workers=16", "trainer.device=cpu"], True, (2, 8, None)),
        (["trainer.nodes=2", "trainer.workers=16", "trainer.device=cuda"], False, (2, 8, 8)),
        (["trainer.nodes=2", "trainer.workers=16", "trainer.processes=4"], True, (2, 2, 2)),
        (["trainer.workers=16", "trainer.launcher=virtual"], True, (1, 1, 1)),
        (["trainer.workers=8", "trainer.launcher=local"], True, (1, 1, 8)),
    ],
)
def test_the_shape_of_a_job(
    overrides: list[str], gpus_here: bool, shape: tuple[int, int, int | None]
) -> None:
    trainer = config_of(*overrides).trainer
    assert slurm.job_shape(trainer, ClusterResources(2, gpus_here)) == shape


@each(
    ("nodes", "says"),
    [
        (3, "trainer.nodes=3 cannot share trainer.workers=16 evenly"),
        (8, "trainer.nodes=8: the cluster's partitions have 4 nodes"),
    ],
)
def test_a_job_that_could_not_run_is_not_sent(nodes: int, says: str) -> None:
    typed = [f"trainer.nodes={nodes}", "trainer.workers=16"]
    trainer = config_of(*typed).trainer
    with pytest.raises(ConfigError, match=says):
        slurm.job_shape(trainer, ClusterResources(4, False))


SINFO = "short 2 (null)\nlong 2 (null)\nlong 3 gpu:a100:4(S:0-1)\n"


def sinfo(folder: Path, content: str) -> str:
    """Return a PATH that has only a sinfo, a shell script of `content`."""
    script(folder, "sinfo", content)
    return str(folder)


def script(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{content}\n")
    (folder / name).chmod(0o755)


def test_what_a_partition_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", sinfo(tmp_path, f"printf '{SINFO}'"))
    assert slurm.find_cluster("short") == (2, False)
    assert slurm.find_cluster("long") == slurm.find_cluster(None) == (5, True)
    assert slurm.find_cluster("short,long") == (5, True)
    says = "partition=fast: the cluster has no such partition; type long or short"
    with pytest.raises(ConfigError, match=says):
        slurm.find_cluster("fast")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "there is no sinfo here"),
        ("echo no route >&2; exit 1", "Slurm does not answer .no route."),
        ("exit 1", "Slurm does not answer .without a message."),
    ],
)
def test_a_sweep_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, says: str
) -> None:
    monkeypatch.setenv("PATH", sinfo(tmp_path, script) if script else str(tmp_path))
    with pytest.raises(
        ConfigError,
        match=f"hydra/launcher=submitit_slurm: {says}.* or hydra/launcher=submitit_local",
    ):
        slurm.find_cluster(None)


def test_a_step_of_several_tasks_is_joined_unless_torchrun_was_there_first() -> None:
    plan = make_plan(config_of("trainer.workers=4", "trainer.nodes=2"), Machine(2, 0, STEP))
    assert (plan.launcher, plan.processes, plan.local_processes) == ("slurm", 4, 2)
    facts = make_plan(
        config_of("trainer.workers=2"), Machine(2, 0, {**STEP, "SLURM_STEP_NUM_TASKS": "1"})
    ).launcher
    assert facts == "local"
    torchrun = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
    }
    both = make_plan(
        config_of("trainer.workers=4", "trainer.nodes=2"), Machine(2, 0, {**STEP, **torchrun})
    )
    assert both.launcher == "torchrun"


def test_all_workers_name_the_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "ECHO_SECONDS", 1.0)
    lost, cause = RuntimeError("Connection closed by peer"), ValueError("the cat is on the wire")
    with ThreadPoolExecutor() as pool:
        noticed = map(failure_of, [lost, lost, cause], range(3))
        seen = list(pool.map(lambda here: first_failure(here, 3, tmp_path), noticed))
    assert {(first.rank, first.reason) for first, _ in seen} == {
        (2, "ValueError: the cat is on the wire")
    }
    assert [records for _, records in seen] == [False, False, True]
    forget_notes(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_worker_that_left_no_message_is_named_by_those_that_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "ECHO_SECONDS", 0.5)
    lost = RuntimeError("Connection closed by peer")
    with ThreadPoolExecutor() as pool:
        noticed = [failure_of(lost, rank) for rank in (0, 2)]
        seen = list(pool.map(lambda here: first_failure(here, 3, tmp_path), noticed))
    assert [(first.rank, first.reason, records) for first, records in seen] == [
        (1, failure.SILENT, True),
        (1, failure.SILENT, False),
    ]


@pytest.mark.parametrize("folder", ["not/there", "."])
def test_a_worker_that_cannot_tell_which_failed_first_gives_its_own_reason(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is on another node's disk, or two workers left no message."""
    monkeypatch.setattr(failure, "ECHO_SECONDS", 0.1)
    lost = RuntimeError("Connection closed by peer")
    first, records = first_failure(failure_of(lost, 1), 3, tmp_path / folder)
    assert (first.rank, first.reason, records) == (1, f"RuntimeError: {lost}", True)
