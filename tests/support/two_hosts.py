"""Two hosts on this machine, joined by a link that can be cut: network namespaces, as in netlab."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import processes
from needed import lacks

CLONE_NEWNET = 0x40000000
ADDRESSES = ("10.77.0.1", "10.77.0.2")


class TwoHosts(NamedTuple):
    namespaces: tuple[int, int]  # a process in each

    def environment(self, rank: int) -> dict[str, str]:
        """Return torchrun's variables for one rank on each host."""
        return {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def cut(self) -> None:
        """Take the link down: packets are lost, and no connection is closed."""
        _run(f"nsenter --net --target {self.namespaces[0]} ip link set eth0 down")


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Yield two hosts, which the kernel removes with the processes that hold them."""
    with ExitStack() as stack:
        holders = []
        for _ in ADDRESSES:
            holder = stack.enter_context(subprocess.Popen(["unshare", "--net", "sleep", "600"]))
            stack.callback(holder.kill)
            holders.append(holder)
        for holder in holders:
            _await_own_network(holder.pid)
        first, second = (holder.pid for holder in holders)
        _run(f"ip link add eth0 netns {first} type veth peer name eth0 netns {second}")
        for pid, address in zip((first, second), ADDRESSES, strict=True):
            enter = f"nsenter --net --target {pid}"
            _run(f"{enter} ip address add {address}/24 dev eth0")
            _run(f"{enter} ip link set lo up")
            _run(f"{enter} ip link set eth0 up")
        yield TwoHosts((first, second))


def gcbench_on(host: str, *arguments: str) -> None:
    """Run what the installed script runs, in the network of the process `host`."""
    with open(f"/proc/{host}/ns/net") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    processes.gcbench(*arguments)


def why_not() -> str | None:
    """Return the reason for a skip where namespaces cannot be made."""
    tried = subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, text=True)
    return lacks("netns", tried.stderr.strip()) if tried.returncode else None


def _await_own_network(pid: int) -> None:
    ours = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == ours:
        time.sleep(0.01)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
