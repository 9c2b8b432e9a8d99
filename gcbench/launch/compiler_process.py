"""The process that compiles a method's kernels: it takes steps on tensors of a run's shapes."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch

from gcbench.codecs.kernels import Backend, Sums, sums_in_use, use_backend
from gcbench.comm import Comm, MirrorTransport
from gcbench.compressors import Compressor, Grads, State, Step, offsets_of, split_rows
from gcbench.config import Config
from gcbench.identity import digest
from gcbench.launch.failure import describe_exit
from gcbench.launch.instantiate import make_compressor
from gcbench.private import compiler_cache
from gcbench.reasons import in_one_line, safe_text
from gcbench.records.files import replace_file
from gcbench.train.run import Run

STOP_SECONDS = 1.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Steps of a method in a single process, with tensors of the shapes that it has in a run."""

    compressor: Config
    threads: int
    shapes: dict[str, list[int]]  # parameter name to shape
    messages: list[list[str]]  # the parameters whose gradients are exchanged together
    workers: int
    workers_per_host: int | None
    rank: int
    processes: int
    number: int  # step number of the first step
    sums: Sums

    @staticmethod
    def of(run: Run, compressor: Config, threads: int) -> Rehearsal:
        return Rehearsal(
            compressor=compressor,
            threads=threads,
            shapes={name: list(shape) for name, shape in run.replica.shapes.items()},
            messages=run.pipeline.messages(run),
            workers=run.comm.workers,
            workers_per_host=run.comm.workers_per_host,
            rank=run.process,
            processes=run.comm.processes,
            number=run.total_steps,  # beyond any dense warm-up
            sums=sums_in_use(),
        )

    def of_tensor(self, name: str) -> Rehearsal:
        """Return a rehearsal with this parameter only."""
        return replace(self, shapes={name: self.shapes[name]}, messages=[[name]])

    def make_gradients(self) -> Grads:
        """Return random gradients `[w, ...]` with the memory layout of a replica's."""
        rows = self.workers // self.processes
        values = sum(math.prod(shape) for shape in self.shapes.values())
        flat = torch.randn(rows, values, generator=torch.Generator().manual_seed(0))
        return split_rows(flat, self.shapes)

    @torch.no_grad()
    def take_steps(self, compressor: Compressor, grads: Grads) -> None:
        """Take two steps: one makes the method's state, the next uses it and is sampled."""
        offsets = offsets_of({name: torch.Size(s).numel() for name, s in self.shapes.items()})
        transport = MirrorTransport(self.rank, self.processes)
        comm = Comm(self.workers, transport, workers_per_host=self.workers_per_host)
        with torch.random.fork_rng(devices=[]):
            for names in self.messages:
                state = State()
                for number in (self.number, self.number + 1):
                    message = {name: grads[name] for name in names}
                    step = Step(number, 0, comm.local, offsets)
                    out = compressor.aggregate(message, state, comm, step)
                    state = out.state
                if out.shannon_bits is not None:
                    out.shannon_bits()

    def try_with(self, backend: Backend, sums: Sums, compressor: Compressor) -> str | None:
        """Take steps that compile or load what the method needs; return the error, or None."""
        try:
            use_backend(backend, sums)
            self.take_steps(compressor, self.make_gradients())
        except Exception as error:
            return in_one_line(error)
        return None


@dataclass(frozen=True)
class Mark:
    """A file whose presence says that torch.compile's cache holds the kernels of a method.

    It contains the seconds of eager coding per step.
    """

    path: Path

    @staticmethod
    def on(rehearsal: Rehearsal) -> Mark:
        """Return the mark of a method's kernels for this code, PyTorch, Python and machine."""
        versions = [torch.__version__, platform.python_version(), platform.node(), _sources()]
        of_all_ranks = asdict(replace(rehearsal, rank=0, number=0))
        name = f"gcbench-{digest([versions, of_all_ranks])}.txt"
        return Mark(compiler_cache() / name)

    def read(self) -> float | None:
        """Return the seconds, or None where there is no such mark."""
        try:
            return float(self.path.read_text())
        except (OSError, ValueError):
            return None

    def write(self, seconds: float) -> None:
        with suppress(OSError):  # without a mark the next run compiles again
            replace_file(self.path, f"{seconds}\n".encode())


@cache
def _sources() -> list[str]:
    """Return the texts of the source files from which kernels are compiled."""
    rooms = [Path(__file__).parents[1] / room for room in ("codecs", "compressors")]
    return [path.read_text("utf-8") for room in rooms for path in sorted(room.glob("*.[pc]*"))]


class Compiler:
    """The background process that compiles.

    It ends when its work is done, when `end` is called, or when the process that started it ends.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START],
            stdin=subprocess.PIPE,  # the process ends when this is closed
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            # So that Ctrl-C reaches only the run, and `end` also ends the compilers.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `problem` says why
            self._process.stdin.write(json.dumps([sys.path, asdict(rehearsal)]).encode() + b"\n")
            self._process.stdin.flush()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def problem(self) -> str | None:
        """Return why the process, which must have ended, failed; None if it did not."""
        exitcode = self._process.returncode
        if exitcode == 0:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return safe_text(lines[-1]) if lines and exitcode > 0 else describe_exit(exitcode)

    def end(self) -> None:
        """End the process and its compilers, which remove files that they have half written."""
        if not self.has_ended():
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._errors.close()
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()


# It watches for the end of its input before the slow imports.
_START = """
import json, os, signal, sys, threading

def end_with_input():
    sys.stdin.read()
    os.killpg(0, signal.SIGTERM)

os.nice(19)
try:  # Linux may weigh sessions by a niceness of their own
    open("/proc/self/autogroup", "w").write("19")
except OSError:
    pass
sys.path[:], rehearsal = json.loads(sys.stdin.readline())
threading.Thread(target=end_with_input, daemon=True).start()
from gcbench.launch.compiler_process import Rehearsal, compile_kernels
compile_kernels(Rehearsal(**rehearsal))
"""


def compile_kernels(steps: Rehearsal) -> None:
    """Compile the kernels that a method needs in a run, then exit; `Compiler` runs this."""
    torch.set_num_threads(steps.threads)
    sys.exit(steps.try_with("compiled", steps.sums, make_compressor(steps.compressor)))
