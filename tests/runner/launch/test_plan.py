"""The plan of where workers run follows from the configuration and the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nightly import each
from sentence import config_of
from slurm_step import STEP

from gcbench.core.errors import ConfigError
from gcbench.runner.launch.plan import Machine, Plan, make_plan

LAPTOP = Machine(cores=2, cuda_devices=0, environment={})
SERVER = Machine(cores=64, cuda_devices=8, environment={})
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
}


def plan_of(machine: Machine, *overrides: str) -> Plan:
    return make_plan(config_of(*overrides), machine)


@each(
    ("machine", "gpus", "launcher", "processes", "device"),
    [
        (LAPTOP, 2, "local", 2, "cpu"),
        (LAPTOP, 16, "virtual", 1, "cpu"),
        (SERVER, 8, "local", 8, "cuda"),
        (SERVER, 16, "virtual", 1, "cuda"),
        (Machine(2, 0, TORCHRUN), 4, "torchrun", 4, "cpu"),
    ],
)
def test_auto(machine: Machine, gpus: int, launcher: str, processes: int, device: str) -> None:
    plan = plan_of(machine, f"trainer.workers={gpus}")
    assert (plan.launcher, plan.processes, plan.device) == (launcher, processes, device)
    assert plan.timed == (processes == gpus)


def test_virtual_workers_are_announced_and_real_ones_are_not() -> None:
    notice = plan_of(LAPTOP, "trainer.workers=16").notice()
    assert notice is not None and "16 VIRTUAL workers" in notice and "no times" in notice
    assert plan_of(LAPTOP).notice() is None


def test_local_beyond_the_cores_is_marked_and_never_falls_back() -> None:
    plan = plan_of(LAPTOP, "trainer.workers=4", "trainer.launcher=local")
    assert plan.launcher == "local" and plan.processes == 4 and plan.oversubscribed
    assert not plan_of(LAPTOP).oversubscribed


def test_several_virtual_workers_in_each_process() -> None:
    plan = plan_of(LAPTOP, "trainer.workers=6", "trainer.processes=2")
    assert (plan.launcher, plan.processes, plan.threads, plan.timed) == ("local", 2, 1, False)


def test_cores_are_shared_by_the_processes() -> None:
    assert plan_of(SERVER, "trainer.device=cpu", "trainer.workers=4").threads == 16
    assert (
        plan_of(SERVER, "trainer.device=cpu", "trainer.workers=4", "trainer.threads=3").threads == 3
    )


def test_backend_follows_the_device() -> None:
    assert plan_of(SERVER, "trainer.workers=4").backend == "nccl"
    assert plan_of(LAPTOP).backend == "gloo"
    assert plan_of(LAPTOP, "trainer.workers=1").backend is None


def test_codecs_are_compiled_where_there_is_a_compiler() -> None:
    without = replace(SERVER, compiler=False)
    assert plan_of(SERVER, "trainer.workers=4").codec_backend == "compiled"
    assert plan_of(without, "trainer.workers=4").codec_backend == "eager"
    assert plan_of(LAPTOP).codec_backend == "native"
    assert plan_of(replace(LAPTOP, compiler=False)).codec_backend == "eager"


def test_the_size_of_a_node_is_typed_as_numbers_depend_on_it() -> None:
    two_hosts = Machine(2, 0, {**TORCHRUN, "LOCAL_WORLD_SIZE": "2"})
    typed = ("trainer.workers=4", "exchange=hierarchical")
    with pytest.raises(ConfigError, match="workers_per_node=null: .* type workers_per_node=2, as"):
        plan_of(two_hosts, *typed)
    assert plan_of(two_hosts, *typed, "workers_per_node=2").local_processes == 2
    assert plan_of(LAPTOP, *typed, "workers_per_node=2").launcher == "virtual"


NOT_HERE = [
    (
        (LAPTOP, "trainer.device=cuda"),
        "trainer.device=cuda: this machine has no CUDA device; type trainer.device=cpu",
    ),
    (
        (LAPTOP, "trainer.launcher=torchrun"),
        "trainer.launcher=torchrun: torchrun did not start this process",
    ),
    (
        (LAPTOP, "trainer.backend=nccl"),
        "trainer.backend=nccl needs GPUs; type trainer.backend=gloo",
    ),
    ((SERVER, "trainer.launcher=local trainer.workers=16"), "NCCL refuses two on one GPU"),
    (
        (Machine(2, 0, TORCHRUN), "trainer.workers=2"),
        "trainer.workers=2, but torchrun started 4 processes; type trainer.workers=4",
    ),
    (
        (Machine(2, 0, {**TORCHRUN, "RANK": "4"}), "trainer.workers=4"),
        "RANK=4 WORLD_SIZE=4: torchrun sets ranks below the number of processes",
    ),
    (
        (LAPTOP, "trainer.launcher=virtual trainer.processes=2"),
        "trainer.launcher=virtual runs one process",
    ),
    (
        (LAPTOP, "trainer.workers=4 exchange=hierarchical"),
        "as for virtual workers; type workers_per_node=2",
    ),
    ((LAPTOP, "exchange=hierarchical"), "workers_per_node=null: all workers would be one node"),
    (
        (LAPTOP, "trainer.workers=4 exchange=hierarchical workers_per_node=3"),
        "cannot share 4 workers evenly",
    ),
    # No network is emulated where nothing is exchanged or timed.
    (
        (LAPTOP, "network=emulated trainer.workers=64"),
        "network=emulated: 64 workers in 1 process are virtual and have no times; type network=n",
    ),
    (
        (LAPTOP, "network=emulated trainer.launcher=virtual"),
        "network=emulated: 2 workers in 1 process are virtual and have no times; type network=n",
    ),
    (
        (LAPTOP, "network=emulated trainer.workers=4 trainer.processes=2"),
        "4 workers in 2 processes are virtual and have no times",
    ),
    (
        (LAPTOP, "network=emulated trainer.workers=1"),
        "network=emulated: a single worker exchanges nothing; type network=none, or "
        "trainer.workers=2",
    ),
    # Slurm's variables.
    (
        (LAPTOP, "trainer.launcher=slurm"),
        "this is not a task of a Slurm job step; type srun --ntasks N gcbench",
    ),
    (
        (Machine(2, 0, STEP), "trainer.workers=2"),
        "trainer.workers=2, but srun started 4 processes; type trainer.workers=4",
    ),
    (
        (Machine(2, 0, STEP), "trainer.workers=4 trainer.nodes=4"),
        "trainer.nodes=4, but srun started on 2; type trainer.nodes=2",
    ),
    ((LAPTOP, "trainer.nodes=2"), "trainer.nodes=2: trainer.launcher=local stays on this machine"),
]


def test_what_is_not_there_is_refused() -> None:
    for (machine, typed), says in NOT_HERE:
        with pytest.raises(ConfigError) as error:
            plan_of(machine, *typed.split())
        assert says in str(error.value)


def test_a_network_is_emulated_between_as_many_processes_as_workers() -> None:
    typed = "network=emulated trainer.workers=64 trainer.launcher=local trainer.processes=null"
    assert plan_of(LAPTOP, *typed.split()).timed
