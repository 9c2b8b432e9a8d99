"""Slurm: a task's place in its job step, the job that a run needs, and how it is requeued.

This module does not import torch.
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

from gcbench.core.errors import ConfigError
from gcbench.runner.settings.groups import TrainerSettings

PORTS = range(15000, 30000)  # below the system's ephemeral ports
# gcbench and submitit ask Slurm for this signal before a time limit or a preemption.
REQUEUE = signal.SIGUSR2
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")  # variables that torchrun sets
Environment = Mapping[str, str]


class ClusterResources(NamedTuple):
    """The resources that a job may ask for."""

    nodes: int
    gpus: bool  # whether nodes have GPUs to allocate


class JobShape(NamedTuple):
    """The nodes of a job, and the tasks and GPUs of each node; None requests no GPUs."""

    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int | None = None

    def side_by_side(self, points: int) -> JobShape:
        """Return the shape of a job that runs `points` points of this shape at the same time."""
        gpus = self.gpus_per_node and points * self.gpus_per_node
        return self._replace(tasks_per_node=points * self.tasks_per_node, gpus_per_node=gpus)


def is_of_torchrun(environment: Environment) -> bool:
    """Return whether torchrun has started this process, or something that sets its variables."""
    return all(name in environment for name in TORCHRUN)


def tasks(environment: Environment) -> int:
    """Return the number of tasks in this process's job step; 0 outside of one."""
    return int(environment.get("SLURM_STEP_NUM_TASKS", 0))


def rank(environment: Environment) -> int:
    """Return the rank of this task in its job step; 0 outside of one."""
    return int(environment.get("SLURM_PROCID", 0))


def nodes(environment: Environment) -> int:
    """Return the number of nodes in the job step."""
    return int(environment["SLURM_STEP_NUM_NODES"])


def tasks_here(environment: Environment) -> int:
    """Return the number of the job step's tasks on this node.

    Slurm's `2(x3),1` means two on each of the first three nodes, and one on the fourth.
    """
    counts: list[int] = []
    for count, times in re.findall(
        r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"]
    ):
        counts += [int(count)] * int(times or 1)
    return counts[int(environment["SLURM_NODEID"])]


def first_host(node_list: str) -> str:
    """Return the first host of a node list, for example `gpu003` of `gpu[003-007,9],fast1`."""
    group = re.match(r"(?:[^,\[]|\[[^]]*\])+", node_list)
    assert group is not None, node_list
    return re.sub(r"\[(\w+)[^]]*\]", r"\1", group[0])


def torch_environment(environment: Environment, directory: Path) -> dict[str, str]:
    """Return the environment variables by which torch.distributed finds the other processes.

    The port is a hash of job step and directory, so that concurrent runs use different ones.
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
    """Set environment variables, and restore the environment afterwards."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def torchrun_environment(directory: Path) -> AbstractContextManager[None]:
    """Return a context that sets torchrun's variables for one of the runs of this process."""
    return _variables(torch_environment(os.environ, directory))


def task_of_its_own() -> AbstractContextManager[None]:
    """Return a context in which a task sees itself as the only one of its job step.

    It gets its share of the GPUs and cores that the job step has on this node.
    """
    here, number = tasks_here(os.environ), int(os.environ["SLURM_LOCALID"])
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    share = len(gpus) // here  # 0 if Slurm has bound each task to GPUs of its own
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
    """Return the signals at which a run stops and leaves a checkpoint.

    SIGHUP is left out if it is ignored, as under nohup.
    """
    usual = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        usual.append(signal.SIGHUP)
    return (*usual, REQUEUE) if "SLURM_JOB_ID" in environment else (*usual,)


def was_requeued(environment: Environment) -> bool:
    """Return whether this job was requeued, and so continues the runs that it began."""
    return environment.get("SLURM_RESTART_COUNT", "0") != "0"


def requeue() -> None:
    """Requeue the job, after a run that REQUEUE stopped has left its checkpoint."""
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        # Submitit's own handler for this signal counts how often it has queued the job again.
        signal.raise_signal(REQUEUE)
    else:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)


def job_shape(trainer: TrainerSettings, cluster: ClusterResources) -> JobShape:
    """Return the shape of a run's job: one task per process and, on GPUs, one GPU per process.

    With trainer.launcher=local a single task starts the processes. Raises ConfigError if the
    cluster has too few nodes, or if the processes cannot be divided evenly among them.
    """
    nodes, processes = trainer.nodes, trainer.processes or trainer.workers
    if nodes > cluster.nodes:  # Slurm would let the job wait forever
        raise ConfigError(
            f"trainer.nodes={nodes}: the cluster's partitions have {cluster.nodes} nodes; type "
            "that number or less"
        )
    if trainer.launcher == "virtual":
        processes = 1
    if processes % nodes:
        key = "trainer.processes" if trainer.processes else "trainer.workers"
        raise ConfigError(
            f"trainer.nodes={nodes} cannot share {key}={processes} evenly; type a number of nodes "
            "that divides it"
        )
    per_node = processes // nodes
    on_gpus = trainer.device == "cuda" or (trainer.device == "auto" and cluster.gpus)
    tasks_here = 1 if trainer.launcher == "local" else per_node
    return JobShape(nodes, tasks_here, per_node if on_gpus else None)


def last_line(text: str) -> str:
    """Return the last line of a program's message, which usually gives the reason."""
    return (text.strip().splitlines() or ["without a message"])[-1]


def find_cluster(partition: str | None) -> ClusterResources:
    """Return the resources of the partition, or of all of them.

    Raises ConfigError if there is no Slurm to send jobs to, or no such partition.
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
            f"({last_line(answer.stderr)}); type the command where sinfo works, or "
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
