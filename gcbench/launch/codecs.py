"""The codecs of a run: native or compiled on all machines, or eager on all."""

from __future__ import annotations

import logging

from gcbench.codecs.kernels import backend_in_use, use_backend
from gcbench.codecs.native import load_native
from gcbench.config import ConfigError
from gcbench.launch.plan import Plan
from gcbench.train.run import Progress, Run

log = logging.getLogger("gcbench")


def choose_codecs(plan: Plan, run: Run, progress: Progress) -> None:
    """Use the plan's codecs if all processes can load them, and note it in `progress`.

    Eager and native codecs have the same bits, except where products of matrices are added.
    """
    problems = [*filter(None, run.control.gather(_problem(plan)))]
    if problems and not plan.may_fall_back:
        raise ConfigError(f"{problems[0]}; type trainer.codec_backend=eager")
    if problems and run.first:
        log.warning("codecs are eager, and slower: %s", problems[0])
    use_backend("eager" if problems else plan.codec_backend)
    before, now = progress.codec_sums, backend_in_use()
    if before[-1:] == [now]:
        return
    if before and run.first:
        log.warning(
            "from step %d on, %s code adds floats up in place of %s code, and rounds differently",
            progress.step,
            now,
            before[-1],
        )
    progress.codec_sums = [*before, now]


def _problem(plan: Plan) -> str | None:
    """Return why this process cannot run the plan's codecs, or None."""
    if plan.codec_backend == "native":
        try:
            load_native()
        except RuntimeError as error:
            return str(error)
    elif plan.codec_backend == "eager" and plan.may_fall_back:
        return "there is no C++ compiler on this machine; install g++"
    return None
