"""Slurm: a task's place in its job step, the job that a run asks for, and how it is requeued.

Imports no torch.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from gcbench.config import Config, ConfigError

PORTS = range(15000, 30000)  # below those that the system hands out by itself
# Slurm sends this, as we and submitit ask, when time is nearly over or others need the nodes.
REQUEUE = signal.SIGUSR2
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")  # what torchrun gives a process
Environment = Mapping[str, str]


class ClusterResources(NamedTuple):
    """The resources that a job may ask for."""

    nodes: int
    gpus: bool  # that nodes have some to give out


class JobShape(NamedTuple):
    """The nodes of a job, the tasks of each, and the GPUs of each; None asks for no GPUs."""

    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int | None = None

    def side_by_side(self, points: int) -> JobShape:
        """Return the shape of a job that runs so many such points at the same time."""
        gpus = self.gpus_per_node and points * self.gpus_per_node
        return self._replace(tasks_per_node=points * self.tasks_per_node, gpus_per_node=gpus)


def tasks(environment: Environment) -> int:
    """Return the tasks of the job step that this process is in; 0 outside of one."""
    return int(environment.get("SLURM_STEP_NUM_TASKS", 0))


def rank(environment: Environment) -> int:
    """Return the number of this task in its job step; 0 outside of one."""
    return int(environment.get("SLURM_PROCID", 0))


def nodes(environment: Environment) -> int:
    """Return the nodes of the job step."""
    return int(environment["SLURM_STEP_NUM_NODES"])


def tasks_here(environment: Environment) -> int:
    """Return the job step's tasks on this node: 2 in `2(x3),1`, but for the last node."""
    counts: list[int] = []
    for count, times in re.findall(
        r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"]
    ):
        counts += [int(count)] * int(times or 1)
    return counts[int(environment["SLURM_NODEID"])]


def first_host(node_list: str) -> str:
    """Return the first host of a node list: `gpu003` of `gpu[003-007,9],fast1`."""
    group = re.match(r"(?:[^,\[]|\[[^]]*\])+", node_list)
    assert group is not None, node_list
    return re.sub(r"\[(\w+)[^]]*\]", r"\1", group[0])


def torch_environment(environment: Environment, directory: Path) -> dict[str, str]:
    """Return the variables by which torch.distributed finds the other processes.

    Steps and runs that overlap have ports of their own.
    """
    step = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']} {directory}"
    port = PORTS[zlib.crc32(step.encode()) % len(PORTS)]
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks_here(environment)),
        "MASTER_ADDR": environment.get("MASTER_ADDR")
        or first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(port),
    }


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and put back what was there before."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def torchrun_environment(directory: Path) -> AbstractContextManager[None]:
    """Return a context with these variables, for one run of several that a command may make."""
    return _variables(torch_environment(os.environ, directory))


def task_of_its_own() -> AbstractContextManager[None]:
    """Return a context in which a task of a job step takes itself for the step's only one.

    It sees its share of the job step's GPUs and cores.
    """
    here, number = tasks_here(os.environ), int(os.environ["SLURM_LOCALID"])
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    share = len(gpus) // here  # none where Slurm has bound each task to GPUs of its own
    own = ",".join(gpus[number * share : (number + 1) * share])
    cores = max(1, int(os.environ["SLURM_CPUS_ON_NODE"]) // here)
    alone = {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
        "SLURM_CPUS_ON_NODE": str(cores),
    }
    return _variables(alone | ({"CUDA_VISIBLE_DEVICES": own} if share else {}))


def stop_signals(environment: Environment) -> tuple[signal.Signals, ...]:
    """Return the signals after which a run leaves a checkpoint.

    The end of a terminal is none for what nohup started.
    """
    usual = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        usual.append(signal.SIGHUP)
    return (*usual, REQUEUE) if "SLURM_JOB_ID" in environment else (*usual,)


def was_requeued(environment: Environment) -> bool:
    """Return whether this job ran before, and so continues the runs that it began."""
    return environment.get("SLURM_RESTART_COUNT", "0") != "0"


def requeue() -> None:
    """Queue the job again, after the checkpoint of a run that REQUEUE stopped."""
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        # Submitit's own handler for this signal counts how often it has queued the job again.
        signal.raise_signal(REQUEUE)
    else:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)


def job_shape(trainer: Config, cluster: ClusterResources) -> JobShape:
    """Return the shape of a run's job: a task a process, and a GPU a process of runs on GPUs."""
    nodes, processes = trainer["nodes"], trainer["processes"] or trainer["gpus"]
    if nodes > cluster.nodes:  # which Slurm would let wait for ever
        raise ConfigError(
            f"trainer.nodes={nodes}: the cluster's partitions have {cluster.nodes} nodes; type "
            "that number or less"
        )
    if trainer["launcher"] == "virtual":
        processes = 1
    if processes % nodes:
        key = "trainer.processes" if trainer["processes"] else "trainer.gpus"
        raise ConfigError(
            f"trainer.nodes={nodes} cannot share {key}={processes} evenly; type a number of nodes "
            "that divides it"
        )
    per_node = processes // nodes
    on_gpus = trainer["device"] == "cuda" or (trainer["device"] == "auto" and cluster.gpus)
    tasks_here = 1 if trainer["launcher"] == "local" else per_node
    return JobShape(nodes, tasks_here, per_node if on_gpus else None)


def find_cluster(partition: str | None) -> ClusterResources:
    """Return the resources of the partition, or of all of them.

    Raises ConfigError where there is no Slurm to send jobs to, or no such partition.
    """
    try:
        answer = subprocess.run(
            ["sinfo", "--all", "--noheader", "--noconvert", "--format=%R %D %G"],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: there is no sinfo here, and so no Slurm; type the "
            "command where sbatch works, or hydra/launcher=submitit_local"
        ) from None
    if answer.returncode:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: Slurm does not answer "
            f"({answer.stderr.strip().splitlines()[-1]}); type the command where sinfo works, or "
            "hydra/launcher=submitit_local"
        )
    rows = [line.split(maxsplit=2) for line in answer.stdout.splitlines()]
    names = sorted({name for name, _, _ in rows})
    asked = partition.split(",") if partition else names
    if not set(asked) <= set(names):
        raise ConfigError(
            f"hydra.launcher.partition={partition}: the cluster has no such partition; type "
            f"{' or '.join(names) or 'null'}"
        )
    nodes = max(
        (sum(int(count) for name, count, _ in rows if name == one) for one in asked), default=0
    )
    return ClusterResources(nodes, any("gpu" in gpus for name, _, gpus in rows if name in asked))
