"""The change of a run from eager to compiled codecs, once these have been compiled.

A background process of low priority fills the cache of torch.compile. Then all processes of the run
load the kernels from there between the same two steps. Results stay bitwise identical, as the code
that sums floats does not change. A mark in the cache lets the next such run on this machine load
the kernels at its start.

For large models, gcbench's own C++ code sums floats from the first step on, so that a run is
rounded in the same way from beginning to end, whatever is in the cache.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Literal

from rich.console import Console
from rich.text import Text

from gcbench.codecs.kernels import sums_in_use, use_backend
from gcbench.config import Config
from gcbench.launch.compiler_process import Compiler, Mark, Rehearsal
from gcbench.launch.memory import free_bytes, needed_bytes
from gcbench.launch.plan import Plan
from gcbench.private import use_own_compiler_cache
from gcbench.records.clock import WARMUP_STEPS
from gcbench.train.run import Progress, Run

LOOK_STEPS = 10  # between checks whether kernels are compiled
BUCKETING_STEPS = 2  # after which the buckets of overlapped exchanges are final
# Remaining seconds of eager coding from which on it pays to compile, and to load compiled kernels,
# which takes each process about 4 seconds.
WORTH_SECONDS = 30.0
WORTH_LOADING_SECONDS = 10.0
NATIVE_VALUES = 1_000_000  # size of a model from which on sums are native

log = logging.getLogger("gcbench")


def _has_own_cache() -> bool:
    try:
        use_own_compiler_cache()
    except ValueError:
        return False
    return True


class BackgroundCompilation:
    """A context manager that changes a run from eager to compiled codecs.

    On exit it ends the compiling process.
    """

    def __init__(self, config: Config, plan: Plan, console: Console) -> None:
        self.compiled_from_step: int | None = None
        self._compressor: Config = config["compressor"]
        self._plan = plan
        self._console = console
        # One process per machine compiles.
        self._compiles = plan.processes == 1 or os.environ["LOCAL_RANK"] == "0"
        self._stage: Literal["eager", "compiling", "settled"] = (
            "eager" if plan.may_change_codecs else "settled"
        )
        self._steps = 0
        self._computed_before = 0.0  # CPU seconds of this process before the first timed step
        self._compiler: Compiler | None = None

    def __enter__(self) -> BackgroundCompilation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._compiler is not None:
            self._compiler.end()

    def choose_sums(self, run: Run, progress: Progress) -> None:
        """Use gcbench's own C++ code for sums of a large model, if all machines can compile it.

        Call it before the first step. A run that continues keeps the kind of sums that it began
        with, if this machine can compile them.
        """
        before = progress.codec_sums
        if before[-1:] != ["eager"]:
            self._use_native_sums(run)
        now = sums_in_use()
        if before[-1:] != [now]:
            if before and run.first:
                log.warning(
                    "from step %d on, %s code adds floats up in place of %s code, and rounds "
                    "differently",
                    progress.step,
                    now,
                    before[-1],
                )
            progress.codec_sums = [*before, now]

    def _use_native_sums(self, run: Run) -> None:
        if not self._plan.may_change_codecs or run.replica.numel < NATIVE_VALUES:
            return
        if not all(run.control.gather(self._plan.compiler and _has_own_cache())):
            return  # a warning follows if codecs are to be compiled
        largest = max(run.replica.parameters.items(), key=lambda item: item[1].numel())[0]
        problem = (
            self._rehearsal(run).of_tensor(largest).try_with("eager", "native", run.compressor)
        )
        if self._agree_on(problem, run, "codecs stay eager, as compiling them failed"):
            use_backend("eager")

    def between_steps(self, run: Run, progress: Progress) -> None:
        """Change to compiled codecs if they are ready, or start to compile them if that pays."""
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
        """Change to compiled codecs that an earlier run has left on every machine, if that pays."""
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
        """Return why this machine cannot compile in the background, or None if it can."""
        if not self._plan.compiler:
            return "there is no C++ compiler on this machine; install g++ to make them faster"
        needed = needed_bytes(
            self._plan, run.replica.numel, run.compressor, run.estimator, self._plan.workers
        )
        if needed // self._plan.local_processes > free_bytes():
            return "compiling them needs more memory than is free"
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
        sums = sums_in_use()
        problem = self._rehearsal(run).try_with("compiled", sums, run.compressor)
        if self._agree_on(problem, run, "codecs stay eager, as loading compiled ones failed"):
            use_backend("eager", sums)
            return
        use_backend("compiled", sums, may_fall_back=True)  # for shapes that occur later
        self._stage = "settled"
        self.compiled_from_step = progress.step
        _take_times(run, progress)
        progress.ledger.begin_anew(codecs="compiled")
        if run.first:
            # Worker processes have no log handler for anything below a warning.
            text = Text(f"codecs are compiled from step {progress.step} on")
            self._console.print(text, soft_wrap=True)

    def _agree_on(self, problem: str | None, run: Run, consequence: str) -> bool:
        """Return whether any process has a problem; process 0 logs the first one."""
        problems = list(filter(None, run.control.gather(problem)))
        if not problems:
            return False
        self._stage = "settled"
        if run.first:
            log.warning("%s: %s", consequence, problems[0])
        return True

    def _coding_seconds(self, run: Run, progress: Progress) -> float:
        """Return the seconds of coding per step, averaged over processes.

        They are scaled to cores that nobody else uses, as compiling is slower on busy cores, too.
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
