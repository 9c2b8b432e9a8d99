"""Thousands of steps of every method: memory does not grow, and the run leaves nothing behind."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from method_cases import CHOICES
from sentence import run

STEPS = 2000
GROWTH_MIB = 5  # allowed per quarter of a run, as allocators keep some memory
OVERRIDES = [
    f"trainer.max_steps={STEPS}",
    *"trainer.launcher=local trainer.checkpoint_steps=100 trainer.eval_every=10".split(),
]


class Memory(threading.Thread):
    """A thread that samples the resident MiB of each child process while the run takes steps."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.first, self.last = folder / "metrics.jsonl", folder / "result.json"
        self.done = threading.Event()
        self.seen: dict[int, list[float]] = {}

    def run(self) -> None:
        while not self.done.wait(0.1):
            for child in children() if self.first.exists() and not self.last.exists() else []:
                with suppress(FileNotFoundError):  # the child has ended
                    pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
                    self.seen.setdefault(child, []).append(
                        pages * os.sysconf("SC_PAGE_SIZE") / 2**20
                    )

    def growth(self) -> list[float]:
        """Return by how many MiB each worker's median grew from the third to the last quarter."""
        quarters = [
            np.array_split(samples, 4) for samples in self.seen.values() if len(samples) > 20
        ]
        return [float(np.median(last) - np.median(third)) for _, _, third, last in quarters]


def children() -> list[int]:
    """Return the process IDs of this process's children, whichever thread started them."""
    return [
        int(pid)
        for path in Path("/proc/self/task").glob("*/children")
        for pid in path.read_text().split()
    ]


def open_resources() -> dict[str, int]:
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    ]
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    listening = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]
    return {
        "processes": len(children()),
        "files": len(links),
        "ports": len(listening),
        "threads": threading.active_count(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("method", CHOICES)
def test_memory_is_flat_and_nothing_is_left(tmp_path: Path, method: str) -> None:
    # The first run starts what outlives any run, such as a helper process.
    run(tmp_path / "first", f"compressor={method}", "trainer.max_steps=2", "trainer.launcher=local")
    before, memory = open_resources(), Memory(tmp_path / "soak")
    memory.start()
    result = run(tmp_path / "soak", f"compressor={method}", *OVERRIDES)
    memory.done.set()
    memory.join()
    assert result["status"] == "done" and result["steps"] == STEPS
    assert len(memory.growth()) >= 2 and max(memory.growth()) < GROWTH_MIB, memory.growth()
    assert len(list((tmp_path / "soak" / "checkpoints").iterdir())) == 2
    end = time.monotonic() + 10
    while open_resources() != before and time.monotonic() < end:
        time.sleep(0.1)
    assert open_resources() == before
