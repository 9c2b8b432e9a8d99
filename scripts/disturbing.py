"""Copies of the command that scripts/faults disturbs, and what disturbs them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import loops

from gcbench import __main__ as command
from gcbench.runner.launch import local
from gcbench.runner.launch.lock import PREFIX, temporary_folder

LIBRARY = Path(__file__).with_name("faults.c")
CALLS = ("write", "create", "rename", "fsync", "mkdir")  # as numbered there
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class Job(NamedTuple):
    """What is typed again and again until it is done."""

    kind: str  # run, sweep, tune or loop
    typed: tuple[str, ...]

    @property
    def builds(self) -> bool:
        """Return whether it compiles codecs, into the cache."""
        return any(f"trainer.codec_backend={one}" in self.typed for one in ("auto", "compiled"))


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
    """A copy of this process that runs `gcbench`, or a loop, in a session of its own.

    With `queue`, it has a network of its own, whose loopback has this queue of `tc qdisc`.
    """

    def __init__(self, folder: Path, job: Job, queue: str = "", own_cache: bool = False) -> None:
        self._folder = folder
        self._err = folder / "err"
        self._err.write_text("")
        self._process = multiprocessing.get_context("fork").Process(
            target=_become, args=(folder, job, self._err, queue, own_cache)
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
        """Return the processes of its session, and others in its folder, that live."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
                inside = (
                    int(session) == self.pid or stat.with_name("cwd").readlink() == self._folder
                )
                if inside and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def workers(self) -> list[int]:
        """Return its worker processes by rank: copies of it, other than a compiler."""
        with suppress(OSError):
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            own, *lines = (Path(f"/proc/{p}/cmdline").read_bytes() for p in (self.pid, *children))
            return sorted(int(p) for p, line in zip(children, lines, strict=True) if line == own)
        return []

    def end(self) -> None:
        """Kill what is left of its session."""
        for pid in self.session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.join()


def _become(folder: Path, job: Job, err: Path, queue: str, own_cache: bool) -> None:
    os.setsid()
    for path, number in ((os.devnull, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    if own_cache:
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    if queue:
        ctypes.CDLL(None).unshare(NEW_NETWORK)
        for line in ("ip link set lo mtu 1500 up", f"tc qdisc add dev lo root {queue}"):
            subprocess.run(line.split(), check=True)
    # Workers need not import all anew, either.
    local._PROCESSES = multiprocessing.get_context("fork")
    sys.argv = ["gcbench", *job.typed]
    loops.main(job.typed) if job.kind == "loop" else command.main()


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
