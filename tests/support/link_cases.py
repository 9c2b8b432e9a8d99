"""Jobs for the hosts of scripts/netlab: `python link_cases.py JOB FOLDER [LINK]`.

Each job writes its result to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Meter
from gcbench.core.comm.transport import GlooTransport
from gcbench.runner.control import ProcessGroupControl
from gcbench.runner.launch.emulated import EmulatedTransport
from gcbench.runner.network import Link

STEPS = 6
HEADER_BYTES = 14 + 20 + 32  # Ethernet, IPv4, TCP with time stamps
SIZES = {1_000_000: 5, 3_000_000: 5}  # bytes of a message: rounds

Exchange = Callable[[], object]


class Sent(NamedTuple):
    bytes: int
    packets: int


def read_sent() -> Sent:
    """Return what the host's interface has sent, as counted by the kernel.

    /proc shows the interfaces of this process's namespace.
    """
    line = next(
        line
        for line in Path("/proc/net/dev").read_text().splitlines()
        if line.strip().startswith("eth0:")
    )
    fields = line.split(":")[1].split()
    return Sent(int(fields[8]), int(fields[9]))


def exchanges(comm: Comm, size: int) -> dict[str, Exchange]:
    """Return every kind of collective, with about `size` bytes per worker.

    In the ragged one, workers send from half of `size` to all of it.
    """
    workers, rank = comm.workers, comm.local.start
    floats = torch.ones(1, size // 4)
    codes = torch.ones(1, size, dtype=torch.uint8)
    length = torch.tensor([size - size // 2 * rank // (workers - 1)])
    parts = torch.ones(1, workers, size // workers, dtype=torch.uint8)
    return {
        "all_reduce": lambda: comm.mean([floats]),
        "all_gather": lambda: comm.gather([codes]),
        "ragged_gather": lambda: comm.gather([codes], [length]),
        "all_to_all": lambda: comm.transpose([parts]),
    }


def count_payload(comm: Comm, control: ProcessGroupControl) -> dict[str, Any]:
    """Return the payload bytes of STEPS collectives, by this host's interface and by the meter."""
    measured: dict[str, Any] = {}
    for name, exchange in exchanges(comm, 600_000).items():
        comm.meter = Meter.of_workers(1)
        measured[name] = {
            "kernel": _leaving(exchange, control),
            "meter": comm.meter.wire_bits[0] / 8,
        }
    return measured


def _leaving(exchange: Exchange, control: ProcessGroupControl) -> int:
    before = _when_drained(control)
    for _ in range(STEPS):
        exchange()
    after = _when_drained(control)
    return after.bytes - before.bytes - HEADER_BYTES * (after.packets - before.packets)


def _when_drained(control: ProcessGroupControl) -> Sent:
    """Return what was sent, once nothing is in transit."""
    control.barrier()
    time.sleep(0.3)
    now = read_sent()
    control.barrier()
    return now


def time_exchanges(comm: Comm, control: ProcessGroupControl) -> dict[str, float]:
    """Return the seconds of each exchange, the minimum over the rounds.

    All hosts start together, and the time ends when the last of them has its result.
    """
    measured = {}
    for size, rounds in SIZES.items():
        for name, exchange in exchanges(comm, size).items():
            exchange()
            seconds_here = []
            for _ in range(rounds):
                control.barrier()
                start = time.perf_counter()
                exchange()
                seconds_here.append(time.perf_counter() - start)
            measured[f"{name} {size}"] = min(
                max(times) for times in zip(*control.gather(seconds_here), strict=True)
            )
    return measured


def count_resent(comm: Comm, control: ProcessGroupControl) -> int:
    """Return the TCP segments that this host sent twice, in exchanges of 4 MB both ways."""
    before, message = _resent(), torch.ones(1, 4_000_000, dtype=torch.uint8)
    for _ in range(20):
        comm.gather([message])
        time.sleep(0.05)
    control.barrier()
    return _resent() - before


def _resent() -> int:
    names, values = (
        line.split()
        for line in Path("/proc/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def run_job(job: str, link: Link | None) -> Any:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = cast(dist.ProcessGroup, dist.group.WORLD)
    control = ProcessGroupControl(cast(dist.ProcessGroup, dist.new_group(backend="gloo")))
    transport = GlooTransport(world)
    comm = Comm(world.size(), EmulatedTransport(transport, link) if link else transport)
    measured = {"counted": count_payload, "timed": time_exchanges, "resent": count_resent}[job](
        comm, control
    )
    dist.destroy_process_group()
    return measured


if __name__ == "__main__":
    _, job, folder, *rate = sys.argv
    link = Link(*map(float, rate)) if rate else None
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(run_job(job, link)))
