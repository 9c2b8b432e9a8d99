"""The plan of a run: the processes and devices of its workers, from settings and machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gcbench.core.codecs.kernels import Backend, choose_codec_backend
from gcbench.core.codecs.native import find_compiler
from gcbench.core.comm.nodes import node_size
from gcbench.core.errors import ConfigError
from gcbench.runner.launch import slurm
from gcbench.runner.records.environment import count_cores
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import TrainerSettings

# Launchers that join processes which another program, named here, has started.
JOINING = {
    "torchrun": "torchrun",
    "slurm": "srun",
}


@dataclass(frozen=True)
class Machine:
    """The facts about a machine that a plan depends on."""

    cores: int
    cuda_devices: int
    environment: Mapping[str, str]
    compiler: bool = True  # whether there is a C++ compiler

    @staticmethod
    def detect() -> Machine:
        cores = count_cores() or 1
        if slurm.tasks(os.environ):
            # Use all cores of the job on this node, as a task may be bound to a few of them.
            cores = int(os.environ["SLURM_CPUS_ON_NODE"])
        return Machine(cores, torch.cuda.device_count(), os.environ, find_compiler() is not None)

    @property
    def under_torchrun(self) -> bool:
        return slurm.is_of_torchrun(self.environment)

    def started_processes(self, launcher: str) -> tuple[int, int]:
        """Return how many processes torchrun or srun started: on all nodes, and on this one."""
        if launcher == "slurm":
            return slurm.tasks(self.environment), slurm.tasks_here(self.environment)
        everywhere = int(self.environment["WORLD_SIZE"])
        return everywhere, int(self.environment.get("LOCAL_WORLD_SIZE", everywhere))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The distribution of `workers` workers over `processes` processes.

    With fewer processes than workers, the workers are virtual and have no times.
    """

    launcher: str  # local | torchrun | slurm | virtual
    device: str  # cpu | cuda
    backend: str | None  # backend of the process group; None for a single process
    workers: int
    processes: int
    local_processes: int  # processes on this node
    threads: int  # per process
    cores: int
    codec_backend: Backend = "eager"
    may_fall_back: bool = False  # whether eager codecs will do where others cannot be had
    quiet: bool = False  # whether the processes print no more than a bar, as in a row of a sweep

    @property
    def timed(self) -> bool:
        return self.processes == self.workers

    @property
    def every_worker_alone(self) -> bool:
        """Return whether there are several workers, each in a process of its own."""
        return self.timed and self.processes > 1

    @property
    def starts_processes(self) -> bool:
        """Return whether this process starts those of the workers, rather than being one."""
        return self.launcher == "local" and self.processes > 1

    @property
    def oversubscribed(self) -> bool:
        """Return whether there are more busy threads than cores, so that times say little."""
        return self.device == "cpu" and self.local_processes * self.threads > self.cores

    def notice(self) -> str | None:
        if self.timed:
            return "more processes than cores: times say little" if self.oversubscribed else None
        return (
            f"{self.workers} VIRTUAL workers in {self.processes} "
            f"process{'es' * (self.processes > 1)} on {self.device}: the same mathematics and the "
            "same bits as real ones, but no times"
        )


def make_plan(config: RunConfig, machine: Machine) -> Plan:
    """Return the plan of a run. Raises ConfigError if this machine cannot run it."""
    trainer = config.trainer
    workers = trainer.workers
    device = _device(trainer.device, machine)
    launcher = _launcher(trainer.launcher, trainer.processes or workers, device, machine)
    _check_trainer_nodes(trainer.nodes, launcher, machine)
    processes, local = _processes(launcher, trainer, workers, machine)
    asked = _backend(trainer.backend, device)
    backend = asked if processes > 1 else None
    if (
        launcher == "local"
        and device == "cuda"
        and processes > machine.cuda_devices
        and backend == "nccl"
    ):
        raise ConfigError(
            f"trainer.launcher=local with {processes} processes: NCCL refuses two on one GPU and "
            f"there are {machine.cuda_devices}; type trainer.launcher=virtual, or "
            f"trainer.processes={machine.cuda_devices}"
        )
    if config.method.exchange == "hierarchical":
        _check_nodes(
            config.method.workers_per_node,
            workers,
            workers // processes,
            local if processes > 1 else None,
        )
    threads = trainer.threads or max(1, machine.cores // local)
    codecs = choose_codec_backend(
        trainer.codec_backend, device, machine.compiler, "trainer.codec_backend"
    )
    plan = Plan(
        launcher=launcher,
        device=device,
        backend=backend,
        workers=workers,
        processes=processes,
        local_processes=local,
        threads=threads,
        cores=machine.cores,
        codec_backend=codecs,
        may_fall_back=trainer.codec_backend == "auto",
    )
    if config.network:
        _check_emulation(config.choices["network"], plan)
    return plan


def _check_emulation(network: str, plan: Plan) -> None:
    if plan.workers == 1:
        raise ConfigError(
            f"network={network}: a single worker exchanges nothing; type network=none, or "
            "trainer.workers=2"
        )
    if not plan.timed:
        raise ConfigError(
            f"network={network}: {plan.workers} workers in {plan.processes} "
            f"process{'es' * (plan.processes > 1)} are virtual and have no times; type "
            "network=none, or trainer.launcher=local trainer.processes=null"
        )


def _check_trainer_nodes(asked: int, launcher: str, machine: Machine) -> None:
    """Refuse a number of nodes other than torchrun or srun use; 1, the default, means any."""
    if asked == 1:
        return
    if launcher not in JOINING:
        raise ConfigError(
            f"trainer.nodes={asked}: trainer.launcher={launcher} stays on this machine; type "
            "hydra/launcher=submitit_slurm with -m, or start gcbench with srun or torchrun on "
            "every node"
        )
    everywhere, local = machine.started_processes(launcher)
    nodes = slurm.nodes(machine.environment) if launcher == "slurm" else everywhere // local
    if nodes != asked:
        raise ConfigError(
            f"trainer.nodes={asked}, but {JOINING[launcher]} started on {nodes}; type "
            f"trainer.nodes={nodes}"
        )


def _check_nodes(asked: int | None, workers: int, rows: int, local_processes: int | None) -> None:
    try:
        size = node_size(asked, workers, rows, local_processes and local_processes * rows)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if asked is None:
        raise ConfigError(
            "workers_per_node=null: results depend on the workers per node, and other hosts may "
            f"have another number; type workers_per_node={size}, as here"
        )


def _device(asked: str, machine: Machine) -> str:
    if asked == "cuda" and not machine.cuda_devices:
        raise ConfigError(
            "trainer.device=cuda: this machine has no CUDA device; type trainer.device=cpu"
        )
    return ("cuda" if machine.cuda_devices else "cpu") if asked == "auto" else asked


def _launcher(asked: str, processes: int, device: str, machine: Machine) -> str:
    if asked == "torchrun" and not machine.under_torchrun:
        raise ConfigError(
            "trainer.launcher=torchrun: torchrun did not start this process; "
            "type torchrun --nproc-per-node N -m gcbench ..., or trainer.launcher=local"
        )
    if asked == "slurm" and not slurm.tasks(machine.environment):
        raise ConfigError(
            "trainer.launcher=slurm: this is not a task of a Slurm job step; type srun --ntasks N "
            "gcbench ..., or trainer.launcher=local"
        )
    if asked not in ("auto", "torchrun"):
        return asked
    if machine.under_torchrun:
        _check_rank(machine.environment["RANK"], machine.environment["WORLD_SIZE"])
        return "torchrun"
    if slurm.tasks(machine.environment) > 1:
        return "slurm"
    places = machine.cuda_devices if device == "cuda" else machine.cores
    return "local" if processes <= places else "virtual"


def _check_rank(rank: str, started: str) -> None:
    if not (rank.isdecimal() and started.isdecimal() and int(rank) < int(started)):
        raise ConfigError(
            f"RANK={rank} WORLD_SIZE={started}: torchrun sets ranks below the number of processes; "
            "start gcbench with torchrun, or type trainer.launcher=local"
        )


def _processes(
    launcher: str, trainer: TrainerSettings, workers: int, machine: Machine
) -> tuple[int, int]:
    """Return the number of processes on all nodes, and on this one."""
    if launcher == "virtual":
        if trainer.processes not in (None, 1):
            raise ConfigError(
                "trainer.launcher=virtual runs one process; "
                f"trainer.processes={trainer.processes} needs trainer.launcher=local"
            )
        return 1, 1
    if launcher == "local":
        processes = trainer.processes or workers
        return processes, processes
    started, local = machine.started_processes(launcher)
    if (trainer.processes or workers) != started:
        key = "trainer.processes" if trainer.processes else "trainer.workers"
        raise ConfigError(
            f"{key}={trainer.processes or workers}, but {JOINING[launcher]} started {started} "
            f"processes; type {key}={started}"
        )
    return started, local


def _backend(asked: str, device: str) -> str:
    if asked == "nccl" and device == "cpu":
        raise ConfigError("trainer.backend=nccl needs GPUs; type trainer.backend=gloo")
    return ("nccl" if device == "cuda" else "gloo") if asked == "auto" else asked
