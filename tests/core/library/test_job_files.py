"""The files for SkyPilot, Kubeflow Trainer and Ray, held to what these tools read."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "scripts" / "examples"

# The keys of a task and of its resources by SkyPilot's page "SkyPilot YAML", which refuses others.
SKY_TASK = {
    *("name", "workdir", "num_nodes", "resources", "envs", "secrets", "volumes", "file_mounts"),
    *("setup", "run", "config", "service"),
}
SKY_RESOURCES = {
    *("infra", "accelerators", "accelerator_args", "cpus", "memory", "instance_type", "use_spot"),
    *("disk_size", "disk_tier", "network_tier", "image_id", "ports", "labels", "autostop"),
    *("any_of", "ordered", "job_recovery"),
}
SKY_VARIABLES = {
    *("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES"),
    *("SKYPILOT_NUM_GPUS_PER_NODE",),
}
# The fields of TrainJob in trainer.kubeflow.org/v1alpha1.
TRAIN_JOB = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"runtimeRef", "initializer", "trainer", "runtimePatches", "suspend", "managedBy"},
    "runtimeRef": {"name", "apiGroup", "kind"},
    "trainer": {
        *("image", "command", "args", "env", "numNodes", "resourcesPerNode", "numProcPerNode"),
    },
}


def read(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


def torchrun_of(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return torchrun's options, and what is typed after gcbench."""
    at = words.index("gcbench")
    assert words[at - 1] == "-m"
    options = words[: at - 1]
    return dict(zip(options[::2], options[1::2], strict=True)), words[at + 1 :]


def test_the_task_of_skypilot(tmp_path: Path) -> None:
    """Its shell is run with the variables of the second of two nodes."""
    task = read("sky.yaml")
    assert task.keys() <= SKY_TASK and task["resources"].keys() <= SKY_RESOURCES
    assert all(isinstance(task[key], str) for key in ("name", "workdir", "setup", "run"))
    assert isinstance(task["num_nodes"], int) and task["resources"]["use_spot"] is True
    assert all(isinstance(value, str) for value in task["envs"].values())
    (mount,) = task["file_mounts"].values()
    assert mount.keys() <= {"name", "source", "store", "persistent", "mode", "config"}
    assert mount["mode"] in ("MOUNT", "COPY", "MOUNT_CACHED")
    assert {*re.findall(r"SKYPILOT_\w+", task["run"])} == SKY_VARIABLES

    stand_in = tmp_path / "torchrun"
    stand_in.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    stand_in.chmod(0o755)
    ended = subprocess.run(
        ["bash", "-euc", task["run"]],
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NODE_RANK": "1",
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "8",
            **task["envs"],
        },
        capture_output=True,
        text=True,
        check=True,
    )
    options, typed = torchrun_of(ended.stdout.splitlines())
    assert options == {
        "--nnodes": "2",
        "--node-rank": "1",
        "--nproc-per-node": "8",
        "--master-addr": "10.0.0.1",
        "--master-port": "29400",
    }
    assert typed == ["trainer.workers=16", "outputs=/outputs", "compressor=powersgd", "rank=2"]


def test_the_train_job_of_kubeflow() -> None:
    job = read("trainjob.yaml")
    spec, trainer = job["spec"], job["spec"]["trainer"]
    for name, node in {"": job, "spec": spec, "trainer": trainer}.items():
        assert node.keys() <= TRAIN_JOB[name], name
    assert spec["runtimeRef"].keys() <= TRAIN_JOB["runtimeRef"]
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    assert trainer["resourcesPerNode"].keys() <= {"limits", "requests", "claims"}
    assert all(isinstance(word, str) for word in [*trainer["command"], *trainer["args"]])
    workers = trainer["numNodes"] * trainer["numProcPerNode"]
    assert trainer["command"] == ["torchrun", "-m", "gcbench", f"trainer.workers={workers}"]
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]


def test_a_row_of_a_sweep_is_a_train_job_of_its_own() -> None:
    page = (ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
    (edit,) = re.findall(r'sed ("s/name: gcbench.*?") trainjob.yaml', page)
    script = shlex.split(edit)[0].replace("$rank", "4")
    file = str(EXAMPLES / "trainjob.yaml")
    edited = subprocess.run(["sed", script, file], capture_output=True, text=True, check=True)
    job = yaml.safe_load(edited.stdout)
    assert job["metadata"]["name"] == "gcbench-rank4"
    assert job["spec"]["runtimeRef"]["name"] == "torch-distributed"
    typed = ["compressor=powersgd", "rank=4", "name=ranks", "outputs=/outputs"]
    assert job["spec"]["trainer"]["args"] == typed


class StandInRay(ModuleType):
    """What the job uses of Ray: tasks are called at once, in this process."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.placed: list[dict[str, Any]] = []
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")

    def init(self) -> None:
        return

    def get(self, value: Any) -> Any:
        return value

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        assert options == {"max_retries": 0}

        def decorate(function: Callable[..., Any]) -> Any:
            def place(**options: Any) -> Any:
                self.placed.append(options)
                return SimpleNamespace(remote=function)

            return SimpleNamespace(options=place)

        return decorate


def test_the_job_of_ray_starts_torchrun_on_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, groups, commands = StandInRay(), list[Any](), list[list[str]]()

    def placement_group(bundles: list[dict[str, float]], strategy: str) -> Any:
        groups.append((bundles, strategy))
        return SimpleNamespace(ready=lambda: None)

    def scheduling(group: Any, placement_group_bundle_index: int) -> int:
        return placement_group_bundle_index

    modules = {
        "ray": ray,
        "ray.util": ModuleType("ray.util"),
        "ray.util.placement_group": SimpleNamespace(placement_group=placement_group),
        "ray.util.scheduling_strategies": SimpleNamespace(
            PlacementGroupSchedulingStrategy=scheduling
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(sys, "argv", ["ray_job.py", "compressor=powersgd", "rank=2"])
    runpy.run_path(str(EXAMPLES / "ray_job.py"), run_name="__main__")

    assert groups == [([{"CPU": 1, "GPU": 8}] * 2, "STRICT_SPREAD")]
    assert [(one["num_gpus"], one["scheduling_strategy"]) for one in ray.placed] == [
        (0, 0),
        (8, 0),
        (8, 1),
    ]
    for node, command in enumerate(commands):
        assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
        options, typed = torchrun_of(command[3:])
        assert options == {
            "--nnodes": "2",
            "--node-rank": str(node),
            "--nproc-per-node": "8",
            "--master-addr": "10.0.0.1",
            "--master-port": "29400",
        }
        assert typed == ["trainer.workers=16", "compressor=powersgd", "rank=2"]
    assert len(commands) == 2
