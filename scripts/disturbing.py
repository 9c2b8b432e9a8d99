"""Copies of the command that scripts/faults disturbs, and the comparison of what they leave."""

from __future__ import annotations

import csv
import ctypes
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gcbench import __main__ as command
from gcbench.launch import local
from gcbench.launch.lock import PREFIX, temporary_folder
from gcbench.records.metrics import BITS

LIBRARY = Path(__file__).with_name("faults.c")
CALLS = ("write", "create", "rename", "fsync", "mkdir")  # as numbered there
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
# What two runs of the same numbers may differ in.
UNEQUAL = (
    *"seconds ledger started finished resumed_step logged versions git machine".split(),
    *"peak_mib memory/peak_mib samples_per_second tokens_per_second".split(),
)


class Fault(NamedTuple):
    kind: str  # signal, disk, clock or link
    what: str  # signals joined by +, a call, seconds, or a queue
    whom: str = ""  # parent, worker or all
    after: float = 0.0  # seconds, as a share of those of the undisturbed run
    number: int = 0  # of the call that fails
    error: int = 0
    lasting: bool = False  # whether later calls fail, too

    def __str__(self) -> str:
        if self.kind == "disk":
            code = errno.errorcode[self.error]
            return f"disk {self.what} {self.number}{' and on' * self.lasting} {code}"
        return f"{self.kind} {self.what} {self.whom} after {self.after:.2f}"


class Armed(ctypes.Structure):
    """The memory that processes share with the preloaded library: see faults.c."""

    ahead: int
    call: int
    error: int
    lasting: int
    left: int  # calls before the one that fails
    struck: int  # calls that failed
    folder: bytes
    _fields_ = [
        ("ahead", ctypes.c_long),
        *((name, ctypes.c_int) for name in ("call", "error", "lasting", "left", "struck")),
        ("folder", ctypes.c_char * 4096),
    ]

    def arm(self, fault: Fault, folder: Path) -> None:
        """Let a call of the disk fail below a folder."""
        self.left, self.error, self.lasting = fault.number, fault.error, fault.lasting
        self.folder, self.call = str(folder).encode(), 1 + CALLS.index(fault.what)

    def disarm(self) -> bool:
        """Let no call fail, and set the clock right; return whether one has failed."""
        struck = self.struck
        self.struck = self.call = self.ahead = 0
        return struck > 0


def preload() -> Armed:
    """Start this script again with the library of faults.c; return the memory they share."""
    if library := os.environ.pop("GCBENCH_FAULTS", None):
        del os.environ["LD_PRELOAD"]
        shared = ctypes.POINTER(Armed).in_dll(ctypes.CDLL(library), "faults")
        shutil.rmtree(Path(library).parent)
        return shared.contents
    library = str(Path(tempfile.mkdtemp(prefix="gcbench-faults-")) / "faults.so")
    build = ["cc", "-O1", "-shared", "-fPIC", "-o", library, str(LIBRARY), "-ldl"]
    if not shutil.which("cc") or subprocess.run(build).returncode:
        sys.exit("scripts/faults: no C compiler here that builds faults.c; install gcc")
    os.environ |= {"LD_PRELOAD": library, "GCBENCH_FAULTS": library}
    os.execv(sys.executable, [sys.executable, *sys.argv])


class Command:
    """A copy of this process that runs `gcbench` in a session of its own.

    With `queue`, it has a network of its own, whose loopback has this queue of `tc qdisc`.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], queue: str = "") -> None:
        self._err = folder / "err"
        self._err.write_text("")
        self._process = multiprocessing.get_context("fork").Process(
            target=_become, args=(folder, arguments, self._err, queue)
        )
        self._process.start()
        self.pid: int = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    @property
    def said(self) -> str:
        return self._err.read_text(errors="replace").strip()

    @property
    def last_line(self) -> str:
        return (self.said.splitlines() or [""])[-1]

    def wait(self, seconds: float) -> bool:
        """Return whether it ends within this time."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def session(self) -> list[int]:
        """Return the processes of its session that live."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
                if int(session) == self.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def workers(self) -> list[int]:
        """Return its worker processes by rank."""
        with suppress(OSError):
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
            return sorted(int(pid) for pid, line in lines.items() if b"tracker" not in line)
        return []

    def end(self) -> None:
        """Kill what is left of its session."""
        for pid in self.session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.join()


def _become(folder: Path, arguments: Sequence[str], err: Path, queue: str) -> None:
    os.setsid()
    for path, number in ((os.devnull, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    if queue:
        ctypes.CDLL(None).unshare(NEW_NETWORK)
        for line in ("ip link set lo mtu 1500 up", f"tc qdisc add dev lo root {queue}"):
            subprocess.run(line.split(), check=True)
    # Workers need not import all anew, either.
    local._PROCESSES = multiprocessing.get_context("fork")
    sys.argv = ["gcbench", *arguments]
    command.main()


def lossy_queues() -> list[str]:
    """Return the queues of `tc qdisc` that delay or lose packets, as far as they work here."""
    if os.getuid() or not shutil.which("tc") or not shutil.which("unshare"):
        return []
    # The second drops what comes faster than its rate.
    wanted = ["netem delay 5ms 5ms loss 2%", "tbf rate 50mbit burst 3k limit 12k"]
    return [queue for queue in wanted if _works(f"tc qdisc add dev lo root {queue}")]


def _works(command: str) -> bool:
    return not subprocess.run(["unshare", "-n", *command.split()], capture_output=True).returncode


def left_behind(folder: Path) -> list[str]:
    """Return the temporary folders there that not even the next run would remove."""
    tempfile.tempdir = str(folder)
    with temporary_folder():
        pass
    tempfile.tempdir = None
    return [path.name for path in folder.glob(f"{PREFIX}*")]


def is_locked(path: Path) -> bool:
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_result(run: Path) -> dict[str, Any]:
    """Return result.json; empty if there is none."""
    path = run / "result.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def differences(one: Path, other: Path) -> list[str]:
    """Return what two runs have, times aside, that is not equal to the bit."""
    a, b = dict(_content_of(one)), dict(_content_of(other))
    return [
        f"{name}: {a.get(name)!r:.60} undisturbed, and {b.get(name)!r:.60}"
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    ]


def _content_of(run: Path) -> Iterator[tuple[str, Any]]:
    yield from _leaves("result", read_result(run))
    last = max((run / "checkpoints").glob("step-*[0-9]"))
    for file in (run / "weights.pt", *last.glob("*.pt")):
        if file.exists():
            yield from _leaves(file.name, torch.load(file, weights_only=True))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    yield from _leaves("metrics", [json.loads(line) for line in lines])
    if (run / "metrics.csv").exists():
        with (run / "metrics.csv").open(newline="") as table:
            yield from _leaves("csv", list(csv.DictReader(table)))
    if (run / "tensorboard").exists():
        events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
        # Totals come after the result: a run that is killed between them is done without.
        ends = ("bits/", "memory/", "test/best_")
        tags = [t for t in events.Tags()["scalars"] if t == BITS or not t.startswith(ends)]
        values = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}
        yield from _leaves("tensorboard", values)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value in nested ones, with its name."""
    if isinstance(value, torch.Tensor):
        content = value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        yield name, (value.dtype, value.shape, content)
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(k, v) for k, v in items if k not in UNEQUAL and not str(k).startswith("time/")]
        yield f"{name}.", len(parts)
        for key, part in parts:
            yield from _leaves(f"{name}.{key}", part)
    else:
        yield name, value
