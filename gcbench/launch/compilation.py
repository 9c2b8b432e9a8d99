"""Compiled codecs for a run that began with eager ones, as soon as there are some.

A process in the background, of low priority, takes steps of the method alone, on tensors of the
run's shapes, and so fills the cache of torch.compile. Then all processes of the run load the
kernels from there between the same two steps. They compute the same to the bit: what adds floats up
stays eager.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from gcbench.codecs.kernels import in_one_line, use_backend
from gcbench.comm import Comm, MirrorTransport
from gcbench.compressors import Compressor, Grads, State, Step, offsets_of
from gcbench.config import Config
from gcbench.launch.instantiate import make
from gcbench.launch.plan import Plan
from gcbench.train.run import Progress, Run

LOOK_STEPS = 10  # between looks whether kernels are compiled
# Seconds of eager coding ahead that are worth it: a process's kernels take about 4 to load.
WORTH_SECONDS = 30.0
STOP_SECONDS = 1.0  # from the request to stop to the kill

log = logging.getLogger("gcbench")


@dataclass(frozen=True)
class Rehearsal:
    """Steps of a method in one process alone, with tensors of the shapes that it has in a run."""

    shapes: dict[str, list[int]]  # of parameters
    messages: list[list[str]]  # the parameters whose gradients are exchanged together
    workers: int
    workers_per_host: int | None
    rank: int
    processes: int
    number: int  # of the first of the steps

    @staticmethod
    def of(run: Run) -> Rehearsal:
        return Rehearsal(
            {name: list(p.shape) for name, p in run.replica.parameters.items()},
            run.pipeline.messages(run),
            run.comm.workers,
            run.comm.workers_per_host,
            run.process,
            run.comm.processes,
            run.total_steps,  # which no dense warm-up reaches
        )

    def make_gradients(self) -> Grads:
        """Return random gradients that lie in memory like those of a replica."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = torch.randn(self.workers // self.processes, sum(sizes)).split(sizes, dim=1)
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


class BackgroundCompilation:
    """The way of a run from eager to compiled codecs; outside this context nothing compiles."""

    def __init__(self, config: Config, plan: Plan) -> None:
        self.compiled_from_step: int | None = None
        self._compressor = config["compressor"]
        self._has_compiler = plan.compiler
        # One process a machine compiles.
        self._compiles = plan.processes == 1 or os.environ["LOCAL_RANK"] == "0"
        self._threads = plan.threads
        self._stage: Literal["eager", "compiling", "settled"] = (
            "eager" if plan.may_change_codecs else "settled"
        )
        self._steps = 0
        self._compiler: Compiler | None = None

    def __enter__(self) -> BackgroundCompilation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._compiler is not None:
            self._compiler.end()

    def after_step(self, run: Run, progress: Progress) -> None:
        """Begin to compile where that is worth it; change to what is compiled."""
        self._steps += 1
        if self._stage == "settled" or self._steps % LOOK_STEPS:
            return
        if self._stage == "eager":
            self._begin_if_worthwhile(run, progress)
        else:
            self._change_if_ready(run, progress)

    def _begin_if_worthwhile(self, run: Run, progress: Progress) -> None:
        worth = _coding_seconds_ahead(run, progress) >= WORTH_SECONDS
        if not worth or not all(run.control.gather(self._has_compiler)):
            self._stage = "settled"
            return
        self._stage = "compiling"
        if self._compiles:
            self._compiler = Compiler(self._compressor, Rehearsal.of(run), self._threads)

    def _change_if_ready(self, run: Run, progress: Progress) -> None:
        ended = self._compiler is None or self._compiler.has_ended()
        if not all(run.control.gather(ended)):
            return
        self._stage = "settled"
        if self._agree_on(self._compiler.problem() if self._compiler else None, run):
            return
        run.pipeline.settle(run, progress)
        if self._agree_on(_load_kernels(run), run):
            use_backend("eager")
            return
        self.compiled_from_step = progress.step
        _take_times(run, progress)
        progress.ledger.begin_anew()
        if run.first:
            log.info("codecs are compiled from step %d on", progress.step)

    def _agree_on(self, problem: str | None, run: Run) -> bool:
        """Return whether any process has a problem, of which the user hears once."""
        problems = list(filter(None, run.control.gather(problem)))
        if problems and run.first:
            log.warning("codecs stay eager, as compiling them failed: %s", problems[0])
        return bool(problems)


def _coding_seconds_ahead(run: Run, progress: Progress) -> float:
    _take_times(run, progress)
    seconds = progress.ledger.seconds()
    if seconds is None:
        return 0.0
    of_step = sum(seconds[phase]["mean"] for phase in ("encode", "decode", "hidden_coding"))
    return of_step * (run.total_steps - progress.step)


def _take_times(run: Run, progress: Progress) -> None:
    progress.ledger.add(run.control.gather(run.clock.take()))


def _load_kernels(run: Run) -> str | None:
    """Change to compiled kernels and load those of a step; return what went wrong, if anything."""
    try:
        use_backend("compiled", sums=False)
        Rehearsal.of(run).take_steps(run.compressor, run.replica.grads)
        use_backend("compiled", sums=False, may_fall_back=True)  # for shapes that come later
    except Exception as error:
        return in_one_line(error)
    return None


class Compiler:
    """The process in the background.

    It ends when its work is done, when it is asked to, or when the process that started it is gone.
    """

    def __init__(self, compressor: Config, rehearsal: Rehearsal, threads: int) -> None:
        request = {"compressor": compressor, "rehearsal": asdict(rehearsal), "threads": threads}
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
            self._process.stdin.write(json.dumps([sys.path, request]).encode() + b"\n")
            self._process.stdin.flush()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def problem(self) -> str | None:
        """Return why it failed, if it did; it has ended."""
        if self._process.returncode == 0:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

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
sys.path[:], request = json.loads(sys.stdin.readline())
threading.Thread(target=end_with_input, daemon=True).start()
from gcbench.launch.compilation import compile_kernels
compile_kernels(**request)
"""


def compile_kernels(compressor: Config, rehearsal: dict[str, Any], threads: int) -> None:
    """Compile the kernels that a method needs in a run, as the process in the background."""
    torch.set_num_threads(threads)
    try:
        use_backend("compiled", sums=False)
        steps = Rehearsal(**rehearsal)
        steps.take_steps(make(compressor, "compressor"), steps.make_gradients())
    except Exception as error:
        sys.exit(in_one_line(error))
