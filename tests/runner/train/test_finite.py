"""The first value that was not finite is named with its kind, step and worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from nightly import each
from sentence import run
from torch import Tensor

from gcbench.core.compressor import Aggregated, State
from gcbench.core.library.agreement import not_finite
from gcbench.core.methods.dense import Dense
from gcbench.core.wrappers.wrappers import ErrorFeedback
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.train.finite import KINDS, FirstBad, describe_bad_value

CPU = torch.device("cpu")


def first_bad(workers: int = 2) -> FirstBad:
    return FirstBad.none(workers, CPU)


def test_the_largest_finite_values_are_finite() -> None:
    """Their sum overflows, which says nothing about a single one of them."""
    noted = first_bad()
    noted.note_gradients(3, torch.zeros(2), torch.full((2, 100), 3e38))
    assert noted.collect(range(2)) == []


@each("value", [torch.nan, torch.inf, -torch.inf])
def test_kind_step_and_worker_are_told(value: float) -> None:
    gradients, residuals = torch.zeros(2, 10), torch.zeros(2, 3, 4)
    gradients[1, 4], residuals[0, 2, 1] = value, value
    update = {"w": torch.zeros(1, 3, 4)}
    for step, kind, worker in ((3, "gradient", 7), (5, "residual", 6)):
        noted = first_bad()
        noted.note_gradients(
            3, torch.zeros(2), gradients if kind == "gradient" else torch.zeros(2, 10)
        )
        kept = State(inner=State(per_worker={"w": residuals})) if kind == "residual" else State()
        noted.note_exchange(5, Aggregated(update, lambda: update, kept))
        assert noted.collect(range(6, 8)) == [(step, KINDS.index(kind), worker)]
        assert f"worker {worker}" in describe_bad_value(noted.collect(range(6, 8))[0])


def test_the_first_step_counts() -> None:
    noted = first_bad(1)
    for step in (2, 4):
        noted.note_gradients(step, torch.tensor([torch.nan]), torch.zeros(1, 2))
    assert noted.collect(range(1)) == [(2, KINDS.index("loss"), 0)]


def test_parts_of_a_row_are_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of tensors that fill a flat one are read at once, with their workers apart."""
    flat = torch.zeros(2, 300)
    parts = [part.view(2, 2, 5) for part in flat.split(10, dim=1)]
    sums: list[Tensor] = []
    plain = Tensor.sum
    monkeypatch.setattr(Tensor, "sum", lambda x: sums.append(x) or plain(x))
    assert not_finite(parts).tolist() == [False, False] and len(sums) == 2
    flat[1, 299] = torch.inf
    assert not_finite(parts).tolist() == not_finite(parts[29:]).tolist() == [False, True]


OVERRIDES = [
    *"compressor=powersgd trainer.launcher=virtual trainer.max_steps=12".split(),
    *"trainer.log_every=4 trainer.workers=3".split(),
]


def test_a_residual_that_is_not_finite_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of all steps are finite, and so is the update of this one."""
    aggregate = ErrorFeedback.aggregate

    def spoil(self: ErrorFeedback, grads: Any, state: Any, comm: Any, step: Any) -> Aggregated:
        out = aggregate(self, grads, state, comm, step)
        if step.number == 5:
            next(iter(out.state.per_worker.values()))[2].view(-1)[3] = torch.nan
        return out

    monkeypatch.setattr(ErrorFeedback, "aggregate", spoil)
    says = r"diverged: what worker 2 remembers .* was not finite after step 5"
    with pytest.raises(RunFailed, match=says):
        run(tmp_path, *OVERRIDES, "min_size=0")


def test_finite_gradients_whose_sum_is_not_are_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate = Dense.aggregate

    def enlarge(self: Dense, grads: Any, state: Any, comm: Any, step: Any) -> Aggregated:
        return aggregate(
            self, {k: torch.full_like(g, 3e38) for k, g in grads.items()}, state, comm, step
        )

    monkeypatch.setattr(Dense, "aggregate", enlarge)
    says = "diverged: the update was not finite at step 0, though every worker's gradient was"
    with pytest.raises(RunFailed, match=says):
        run(tmp_path, *OVERRIDES, "compressor=none")


def test_a_late_exchange_is_blamed_on_its_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate = Dense.aggregate

    def spoil(self: Dense, grads: Any, state: Any, comm: Any, step: Any) -> Aggregated:
        bad = torch.inf if step.number == 2 else 1
        out = aggregate(self, grads, state, comm, step)
        return out._replace(update={k: u * bad for k, u in out.update.items()})

    monkeypatch.setattr(Dense, "aggregate", spoil)
    with pytest.raises(RunFailed, match="the update was not finite at step 2, though"):
        run(tmp_path, *OVERRIDES, "compressor=none", "trainer.double_buffering=true")
