"""Measure steps of FSDP2 and HSDP on a shaped link, with and without compressed gradients.

    scripts/netlab --hosts 2 --rate 1gbit -- sh -c 'torchrun --nnodes 2 --nproc-per-node 2 \\
        --node-rank $RANK --master-addr $MASTER_ADDR --master-port 29400 scripts/turns sharded'

Each host is a node with several processes; what these send to each other does not leave the host.
FSDP shards over all processes. HSDP shards inside a node and averages between nodes: PyTorch's own
uses a mesh of two dimensions, ours a mesh of one and `replicas=`. All take turns in the same
processes. The script writes outputs/tables/links/sharded-<rate>-<hosts>.md, and its measurements to
outputs/results/links/.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import gcbench
from gcbench.core.meeting import join
from gcbench.runner.bench.timing import Row, turns
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.control import Control, ProcessGroupControl
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.records.environment import describe_environment
from lib.contenders import Contender
from lib.turns import BASELINE, keep_measured, refuse_alone, time_rows

WIDTH, LAYERS, BATCH = 1024, 4, 8  # 4.2 million values, with little to compute
METHODS: dict[str, dict[str, Any]] = {
    "qsgd": {"bits": 4},
    "scaled_sign": {},
}
WHOLE = "whole"
HEADINGS = ["training", "gradients", "step", "of plain", "MB off a host"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/turns sharded",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=turns, default=8, help="turns, with two timed steps each")
    typed = parser.parse_args()
    refuse_alone("sharded")
    keep_freed_memory()
    torch.set_num_threads(1)
    with join("gloo", timeout=timedelta(minutes=10)):
        rows = measure(typed.rounds)
        if dist.get_rank() == 0:
            write(rows, typed.rounds)


def measure(rounds: int) -> list[Row]:
    inside = int(os.environ["LOCAL_WORLD_SIZE"])
    everybody = init_device_mesh("cpu", (dist.get_world_size(),))
    nodes = init_device_mesh(
        "cpu", (dist.get_world_size() // inside, inside), mesh_dim_names=("node", "process")
    )
    control = ProcessGroupControl(cast(dist.ProcessGroup, dist.new_group(backend="gloo")))
    racing: dict[str, Contender] = {BASELINE: Sharded(None)}
    racing[f"FSDP, {WHOLE}"] = Sharded(everybody)
    for name, knobs in METHODS.items():
        one = racing[f"FSDP, {name}"] = Sharded(everybody)
        one.handle = gcbench.compress(one.model, name, **knobs)
    racing[f"HSDP, {WHOLE}"] = Sharded(nodes)
    for name, knobs in METHODS.items():
        one = racing[f"HSDP, {name}"] = Sharded(nodes["process"])
        group = nodes["node"].get_group()
        one.handle = gcbench.compress(one.model, name, replicas=group, **knobs)
    return time_rows(racing, control, rounds)


@dataclass
class Sharded:
    """A network with layers sharded over a mesh, each layer a parameter group."""

    mesh: DeviceMesh | None
    model: Any = field(init=False)
    handle: gcbench.Compression | None = None
    period: int = 1
    steps: int = 0
    bytes_off_host: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        if self.mesh is not None:
            for part in (*self.model, self.model):
                fully_shard(part, mesh=self.mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.inputs = torch.randn(BATCH, WIDTH)

    def step(self) -> None:
        before = bytes_off_host()
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
        self.steps += 1
        self.bytes_off_host += bytes_off_host() - before

    def settle(self) -> None:
        pass

    def facts(self, control: Control) -> Row:
        """Return bytes that left the first host per step, and payload bits of our compression."""
        handle = self.handle
        return {
            "bytes_off_host": control.gather(self.bytes_off_host / self.steps)[0],
            "payload_bits": None if handle is None else handle.bits_sent / self.steps,
        }


def bytes_off_host() -> int:
    """Return the bytes that this host's interface has sent, including headers."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == os.environ.get("GLOO_SOCKET_IFNAME", "eth0"):
            return int(counts.split()[8])
    return 0


def write(rows: list[Row], rounds: int) -> None:
    rate, inside = os.environ.get("GCBENCH_LINK", "open"), int(os.environ["LOCAL_WORLD_SIZE"])
    hosts = dist.get_world_size() // inside
    facts = {
        "link": rate,
        "hosts": hosts,
        "processes_per_host": inside,
        "rounds": rounds,
        **describe_environment().model_dump(),
        "rows": rows,
    }
    keep_measured(f"sharded-{rate}-{hosts}", facts, page(facts))


def page(facts: Row) -> str:
    rows, rate, hosts, inside = (
        facts[key] for key in ("rows", "link", "hosts", "processes_per_host")
    )
    seconds = {row["method"]: row["step_seconds"] for row in rows}
    cells = []
    for row in rows:
        training, _, gradients = row["method"].partition(", ")
        plain = seconds.get(f"{training}, {WHOLE}")
        cells.append(
            [
                training,
                gradients,
                f"{1e3 * row['step_seconds']:.0f}",
                "" if plain is None else f"{row['step_seconds'] / plain:.2f}",
                f"{row['bytes_off_host'] / 1e6:.2f}",
            ]
        )
    table = markdown(TextTable(HEADINGS, cells, left=(0, 1)))
    return (
        f"# Sharded training on {hosts} hosts of {inside} processes joined at {rate}\n\n{table}\n\n"
        f"Steps of {LAYERS} layers of {WIDTH} x {WIDTH} in ms, medians of {2 * facts['rounds']} in "
        "turn, in one run. MB off a host are a step's, counted at its interface.\n"
    )
