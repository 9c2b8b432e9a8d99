"""What a result is made of: counts, scores, and what was known at the start."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from gcbench.core.errors import safe_text
from gcbench.runner.identity import identify
from gcbench.runner.records.environment import checked_out, describe_environment, now, slurm_job
from gcbench.runner.records.metrics import BETTER_HIGH, PLACE
from gcbench.runner.records.schema import (
    BITS_PER_MIB,
    Bits,
    BitsBetweenNodes,
    Extended,
    Git,
    Resharded,
    Result,
    Status,
)
from gcbench.runner.settings.config import RunConfig


def count_bits(per_worker: Sequence[float], steps: int, steps_per_epoch: int, dense: float) -> Bits:
    """Return the bits of a run from each worker's total; fp32 takes `dense` bits per step."""
    mean = sum(per_worker) / len(per_worker)
    per_step = mean / max(steps, 1)
    ratio = dense / per_step if per_step else None
    return Bits(
        per_worker=mean,
        per_worker_max=max(per_worker),
        per_step=per_step,
        per_epoch_mib=per_step * steps_per_epoch / BITS_PER_MIB,
        dense_per_step=dense,
        ratio=ratio,
        bf16_ratio=ratio and ratio / 2,
    )


def count_bits_between_nodes(
    per_node: Sequence[float], steps: int, dense: float
) -> BitsBetweenNodes:
    """Return the bits between nodes from each node's total; fp32 takes `dense` bits per step."""
    mean = sum(per_node) / len(per_node)
    per_step = mean / max(steps, 1)
    ratio = dense / per_step if per_step else None
    return BitsBetweenNodes(per_node=mean, per_step=per_step, ratio=ratio)


def summarize_tests(tests: Sequence[dict[str, Any]]) -> dict[str, float | None] | None:
    """Return the last value of every score, and the best value of each score that all tests have.

    A value that is no number is not the best. None if there are no tests.
    """
    if not tests:
        return None
    names = [name for name in tests[-1] if name not in PLACE]
    last = {name: tests[-1][name] for name in names}
    best = {
        f"best_{name}": (max if name in BETTER_HIGH else min)(
            (test[name] for test in tests if not math.isnan(test[name])), default=math.nan
        )
        for name in names
        if all(name in test for test in tests)
    }
    return {**last, **best}


class Begun(NamedTuple):
    """The facts of a run that are known when it starts."""

    started: str  # the time of this start, whether the run begins or continues
    git: Git
    extended: list[Extended]
    # The id of the run in W&B, $WANDB_RUN_ID by default; it stays the same when it is continued.
    run_id: str
    resharded: Sequence[Resharded] = ()

    @staticmethod
    def here(
        before: dict[str, Any] | None = None,
        extended: Extended | None = None,
        resharded: Sequence[Resharded] = (),
    ) -> Begun:
        """Return the start of a run on this machine.

        Args:
            before: start.json of an earlier start of the run.
            extended: the end of the shorter run that is extended now.
            resharded: all changes of the number of workers so far, including one at this start.
        """
        git, run_id = checked_out(), os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        earlier: list[Extended] = []
        if before:
            run_id = before.get("run_id", run_id)  # an older gcbench wrote none
            earlier = [Extended.model_validate(where) for where in before["extended"]]
            first = Git.model_validate(before["git"])
            others = [*first.later_commits]
            if git.commit is not None and git.commit != first.commit:
                others.append(git.commit)
            git = Git(
                commit=first.commit,
                dirty=first.dirty or git.dirty,
                date=first.date,
                later_commits=list(dict.fromkeys(others)),
            )
        # A start that was killed has recorded the same extension already.
        anew = [extended] if extended and extended not in earlier else []
        return Begun(now(), git, [*earlier, *anew], run_id, resharded)

    def identity(self, config: RunConfig) -> str:
        """Return the identity of a run of `config` with this start."""
        return identify(
            config.as_dict(),
            [extended.from_step for extended in self.extended],
            [(where.from_step, where.workers) for where in self.resharded],
        )

    def as_json(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the content of start.json: the run and its origin."""
        return {
            "config": config,
            "run_id": self.run_id,
            "slurm_job": slurm_job(),  # which continues the run when it is requeued
            "git": self.git.model_dump(),
            "extended": [where.model_dump() for where in self.extended],
            "resharded": [where.model_dump() for where in self.resharded],
        }


def make_result(
    config: RunConfig, begun: Begun, status: Status, reason: str | None, **measured: Any
) -> Result:
    """Return the result of a run that ends now; `measured` is empty if no worker wrote a result."""
    beside = ("choices", "experiment")
    own = {key: value for key, value in config.as_dict().items() if key not in beside}
    return Result(
        identity=begun.identity(config),
        status=status,
        reason=reason and safe_text(reason),
        experiment=config.experiment,
        choices=config.choices,
        config=own,
        extended=begun.extended,
        resharded=list(begun.resharded),
        started=begun.started,
        **{**dict(describe_environment(begun.git)), **measured},
    )
