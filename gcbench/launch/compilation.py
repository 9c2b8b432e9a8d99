"""Compiled codecs for a run that began with eager ones, as soon as there are some.

A process in the background, of low priority, takes steps of the method alone, on tensors of the
run's shapes, and so fills the cache of torch.compile. Then all processes of the run load the
kernels from there between the same two steps. They compute the same to the bit: what adds floats up
stays as it was. A mark in the cache lets the next such run on this machine load them at its start.

What adds floats up is C++ of our own from the first step on where models are large, so that a run
is rounded alike from its beginning to its end, whatever is in the cache.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.text import Text

from gcbench.codecs.kernels import Sums, in_one_line, sums_in_use, use_backend
from gcbench.comm import Comm, MirrorTransport
from gcbench.compressors import Compressor, Grads, State, Step, offsets_of
from gcbench.config import Config
from gcbench.identity import digest
from gcbench.launch.checks import free_bytes, needed_bytes
from gcbench.launch.failure import describe_exit
from gcbench.launch.instantiate import make
from gcbench.launch.plan import Plan
from gcbench.private import compiler_cache, use_own_compiler_cache
from gcbench.records.clock import WARMUP_STEPS
from gcbench.records.files import replace_file
from gcbench.train.run import Progress, Run

LOOK_STEPS = 10  # between looks whether kernels are compiled
BUCKETING_STEPS = 2  # before which the buckets of overlapped exchanges are not final
# Seconds of eager coding ahead that are worth compiling, and worth loading what was compiled, which
# takes about 4 in each process.
WORTH_SECONDS = 30.0
WORTH_LOADING_SECONDS = 10.0
NATIVE_VALUES = 1_000_000  # of a model, from which on sums are native
STOP_SECONDS = 1.0  # from the request to stop to the kill

log = logging.getLogger("gcbench")


@dataclass(frozen=True)
class Rehearsal:
    """Steps of a method in one process alone, with tensors of the shapes that it has in a run."""

    compressor: Config
    threads: int
    shapes: dict[str, list[int]]  # of parameters
    messages: list[list[str]]  # the parameters whose gradients are exchanged together
    workers: int
    workers_per_host: int | None
    rank: int
    processes: int
    number: int  # of the first of the steps
    sums: Sums

    @staticmethod
    def of(run: Run, compressor: Config, threads: int) -> Rehearsal:
        return Rehearsal(
            compressor,
            threads,
            {name: list(p.shape) for name, p in run.replica.parameters.items()},
            run.pipeline.messages(run),
            run.comm.workers,
            run.comm.workers_per_host,
            run.process,
            run.comm.processes,
            run.total_steps,  # which no dense warm-up reaches
            sums_in_use(),
        )

    def of_tensor(self, name: str) -> Rehearsal:
        """Return the same of one parameter alone."""
        return replace(self, shapes={name: self.shapes[name]}, messages=[[name]])

    def make_gradients(self) -> Grads:
        """Return random gradients that lie in memory like those of a replica."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        rows = self.workers // self.processes
        flat = torch.randn(rows, sum(sizes), generator=torch.Generator().manual_seed(0))
        parts = flat.split(sizes, dim=1)
        return {
            name: part.view(-1, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    @torch.no_grad()
    def take_steps(self, compressor: Compressor, grads: Grads) -> None:
        """Take a step that makes the method's state, and one that uses it and is sampled."""
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


def _has_own_cache() -> bool:
    try:
        use_own_compiler_cache()
    except ValueError:
        return False
    return True


class BackgroundCompilation:
    """The way of a run from eager to compiled codecs; outside this context nothing compiles."""

    def __init__(self, config: Config, plan: Plan, console: Console) -> None:
        self.compiled_from_step: int | None = None
        self._compressor: Config = config["compressor"]
        self._plan = plan
        self._console = console
        # One process a machine compiles.
        self._compiles = plan.processes == 1 or os.environ["LOCAL_RANK"] == "0"
        self._stage: Literal["eager", "compiling", "settled"] = (
            "eager" if plan.may_change_codecs else "settled"
        )
        self._steps = 0
        self._computed_before = 0.0  # seconds of this process's cores before the first timed step
        self._compiler: Compiler | None = None

    def __enter__(self) -> BackgroundCompilation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._compiler is not None:
            self._compiler.end()

    def use_native_sums(self, run: Run) -> None:
        """Let C++ of our own add floats up in a run of a large model, if all machines compile it.

        To be called before the first step.
        """
        if not self._plan.may_change_codecs or run.replica.numel < NATIVE_VALUES:
            return
        if not all(run.control.gather(self._plan.compiler and _has_own_cache())):
            return  # of which the user hears where codecs would be compiled
        largest = max(run.replica.parameters.items(), key=lambda item: item[1].numel())[0]
        problem = self._load_native(self._rehearsal(run).of_tensor(largest), run.compressor)
        if self._agree_on(problem, run, "codecs stay eager, as compiling them failed"):
            use_backend("eager")

    def _load_native(self, rehearsal: Rehearsal, compressor: Compressor) -> str | None:
        """Take steps that compile what the method needs; return what went wrong, if any."""
        try:
            use_backend("eager", "native")
            rehearsal.take_steps(compressor, rehearsal.make_gradients())
        except Exception as error:
            return in_one_line(error)
        return None

    def between_steps(self, run: Run, progress: Progress) -> None:
        """Change to what is compiled, or begin to compile where that is worth it."""
        if self._stage == "settled":
            return
        if self._steps == WARMUP_STEPS:
            self._computed_before = time.process_time()
        if self._steps in (0, BUCKETING_STEPS):
            self._change_if_marked(run, progress)
        if self._steps and self._steps % LOOK_STEPS == 0:
            if self._stage == "eager":
                self._begin_if_worthwhile(run, progress)
            elif self._stage == "compiling":
                self._change_if_ready(run, progress)
        self._steps += 1

    def _change_if_marked(self, run: Run, progress: Progress) -> None:
        """Change to what another run has compiled on each of the machines."""
        mark = Mark.on(self._rehearsal(run))
        seconds = run.control.gather(mark.read() if self._plan.compiler else None)
        if None in seconds:
            return
        if max(seconds) * (run.total_steps - progress.step) >= WORTH_LOADING_SECONDS:
            self._change(run, progress)

    def _begin_if_worthwhile(self, run: Run, progress: Progress) -> None:
        seconds = self._coding_seconds(run, progress)
        if seconds * (run.total_steps - progress.step) < WORTH_SECONDS:
            self._stage = "settled"
            return
        if self._agree_on(self._obstacle(run), run, "codecs stay eager"):
            return
        self._stage = "compiling"
        if self._compiles:
            self._compiler = Compiler(self._rehearsal(run))

    def _obstacle(self, run: Run) -> str | None:
        """Return why this machine cannot compile in the background, if so."""
        if not self._plan.compiler:
            return "there is no C++ compiler on this machine; install g++ to make them faster"
        needed = needed_bytes(
            self._plan, run.replica.numel, run.compressor, run.estimator, self._plan.workers
        )
        if needed // self._plan.local_processes > free_bytes():
            return "to compile them takes more memory than is free"
        return None

    def _change_if_ready(self, run: Run, progress: Progress) -> None:
        ended = self._compiler is None or self._compiler.has_ended()
        if not all(run.control.gather(ended)):
            return
        problem = self._compiler.problem() if self._compiler else None
        if self._agree_on(problem, run, "codecs stay eager, as compiling them failed"):
            return
        seconds = self._coding_seconds(run, progress)
        if self._compiles:
            Mark.on(self._rehearsal(run)).write(seconds)
        if seconds * (run.total_steps - progress.step) < WORTH_LOADING_SECONDS:
            self._stage = "settled"
            return
        self._change(run, progress)

    def _change(self, run: Run, progress: Progress) -> None:
        run.pipeline.settle(run, progress)
        problem = self._load_kernels(run)
        if self._agree_on(problem, run, "codecs stay eager, as loading compiled ones failed"):
            use_backend("eager", sums_in_use())
            return
        self._stage = "settled"
        self.compiled_from_step = progress.step
        _take_times(run, progress)
        progress.ledger.begin_anew()
        if run.first:
            # Workers have no handler for what is no warning.
            text = Text(f"codecs are compiled from step {progress.step} on")
            self._console.print(text, soft_wrap=True)

    def _load_kernels(self, run: Run) -> str | None:
        """Change to compiled kernels and load those of a step; return what went wrong, if any."""
        rehearsal = self._rehearsal(run)
        try:
            use_backend("compiled", rehearsal.sums)
            rehearsal.take_steps(run.compressor, rehearsal.make_gradients())
            # For shapes that come later.
            use_backend("compiled", rehearsal.sums, may_fall_back=True)
        except Exception as error:
            return in_one_line(error)
        return None

    def _agree_on(self, problem: str | None, run: Run, consequence: str) -> bool:
        """Return whether any process has a problem, of which the user hears once."""
        problems = list(filter(None, run.control.gather(problem)))
        if not problems:
            return False
        self._stage = "settled"
        if run.first:
            log.warning("%s: %s", consequence, problems[0])
        return True

    def _coding_seconds(self, run: Run, progress: Progress) -> float:
        """Return the seconds of coding in a step, a mean over processes.

        They are those of cores that nobody else uses: compiling, too, takes longer on busy ones.
        """
        _take_times(run, progress)
        phases = progress.ledger.seconds()
        steps = self._steps - WARMUP_STEPS
        if phases is None or steps < 1:
            return 0.0
        seconds = {phase: times["mean"] for phase, times in phases.items()}
        computed = run.control.gather((time.process_time() - self._computed_before) / steps)
        busy = seconds["step"] - seconds["exchange"] - seconds["wait"]
        share_of_core = min(1.0, sum(computed) / len(computed) / busy)
        return share_of_core * (seconds["encode"] + seconds["decode"] + seconds["hidden_coding"])

    def _rehearsal(self, run: Run) -> Rehearsal:
        return Rehearsal.of(run, self._compressor, self._plan.threads)


def _take_times(run: Run, progress: Progress) -> None:
    progress.ledger.add(run.control.gather(run.clock.take()))


@dataclass(frozen=True)
class Mark:
    """The file which says that the cache of torch.compile holds the kernels of a method.

    It holds the seconds of coding in a step that is not compiled.
    """

    path: Path

    @staticmethod
    def on(rehearsal: Rehearsal) -> Mark:
        """Return the mark of a method's kernels, by this code and PyTorch for this machine."""
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
        with suppress(OSError):  # the next run compiles in the background again
            replace_file(self.path, f"{seconds}\n".encode())


@cache
def _sources() -> list[str]:
    """Return the code from which kernels are compiled."""
    rooms = [Path(__file__).parents[1] / room for room in ("codecs", "compressors")]
    return [path.read_text("utf-8") for room in rooms for path in sorted(room.glob("*.[pc]*"))]


class Compiler:
    """The process in the background.

    It ends when its work is done, when it is asked to, or when the process that started it is gone.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START],
            stdin=subprocess.PIPE,  # at whose end it ends
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            start_new_session=True,  # for Ctrl-C, which is the run's, and to end its compilers too
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `problem` says why
            self._process.stdin.write(json.dumps([sys.path, asdict(rehearsal)]).encode() + b"\n")
            self._process.stdin.flush()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def problem(self) -> str | None:
        """Return why it failed, if it did; it has ended."""
        exitcode = self._process.returncode
        if exitcode == 0:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines and exitcode > 0 else describe_exit(exitcode)

    def end(self) -> None:
        """End it and its compilers, which remove what they have half written."""
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


# It listens for its end before it imports what takes long.
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
from gcbench.launch.compilation import Rehearsal, compile_kernels
compile_kernels(Rehearsal(**rehearsal))
"""


def compile_kernels(steps: Rehearsal) -> None:
    """Compile the kernels that a method needs in a run, as the process in the background."""
    torch.set_num_threads(steps.threads)
    try:
        use_backend("compiled", steps.sums)
        steps.take_steps(make(steps.compressor, "compressor"), steps.make_gradients())
    except Exception as error:
        sys.exit(in_one_line(error))
