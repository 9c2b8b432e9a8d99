"""Workers agree on what is kept, also where a GPU decides it and the host does not look."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo_pool import pool
from library_cases import skip_scaled
from nightly import each
from other_device import OtherDevice, There, bring_back, move_there
from torch import Tensor

from gcbench.core.compressor import State
from gcbench.core.library.agreement import blank, choose, judge, tell

NAN, INF = torch.nan, torch.inf


def told(*workers: tuple[bool, int, float | None]) -> tuple[list[bool], list[int]]:
    """Return what each worker sees of the maximum, from whether it saw a bad value, its number of
    exchanges and its total.
    """
    numbers = [torch.tensor([number]) for _, number, _ in workers]
    each = [
        tell(torch.tensor([bad]), number, None if total is None else torch.tensor([total]))
        for (bad, _, total), number in zip(workers, numbers, strict=True)
    ]
    most = torch.stack(each).amax(0)
    verdicts = [torch.zeros(1, dtype=torch.int64) for _ in workers]
    seen = [bool(judge(most, *pair)) for pair in zip(numbers, verdicts, strict=True)]
    return seen, [int(verdict) for verdict in verdicts]


@each(
    ("workers", "bad", "verdicts"),
    [
        ([(False, 3, None), (False, 3, None)], False, [0, 0]),
        ([(False, 3, None), (True, 3, None)], True, [0, 0]),
        ([(False, 3, None), (False, 1, None)], False, [(3 << 32) + 1, (1 << 32) + 3]),
        ([(False, 3, 0.5), (False, 3, 0.5)], False, [0, 0]),
        ([(False, 3, 0.5), (False, 3, None)], False, [0, 0]),
        ([(True, 3, 0.5), (False, 3, -0.5)], True, [-1, -1]),
    ],
)
def test_workers_are_told_of_bad_values_and_of_how_they_differ(
    workers: list[tuple[bool, int, float | None]], bad: bool, verdicts: list[int]
) -> None:
    assert told(*workers) == ([bad, bad], verdicts)


def test_the_first_difference_is_told() -> None:
    verdict = torch.tensor([(3 << 32) + 1])
    judge(torch.tensor([0.0, 5, -2, -INF, -INF]), torch.tensor([2]), verdict)
    assert verdict == (3 << 32) + 1


def states(device: str) -> tuple[State, State]:
    """Return two states with two parts of a tensor, one of another layout, and whole numbers."""

    def state(value: float) -> State:
        parts = torch.full((1, 10), value, device=device).split([4, 6], dim=1)
        residual = {"a": parts[0].view(1, 2, 2), "b": parts[1]}
        column = torch.full((1, 3, 2) if value else (1, 2, 3), value, device=device)
        shared = {"a": column.mT if value else column}
        whole = torch.full((1, 3), int(value), dtype=torch.int8, device=device)
        return State(shared, residual, State(per_worker={"a": whole}))

    return state(0), state(7)


def values(state: State) -> list[Tensor]:
    layers = [(layer.shared, layer.per_worker) for layer in state.layers()]
    return [x for parts in layers for part in parts for x in part.values()]


@each("bad", [False, True])
def test_a_state_is_kept_and_an_update_is_nan_where_a_value_was_bad(bad: bool) -> None:
    old, new = states("cpu")
    expected, update = values(old if bad else new), torch.tensor([1.0, -INF])
    assert all(map(torch.equal, values(choose(torch.tensor([bad]), old, new)), expected))
    blank([update], torch.tensor([bad]))
    assert update.isnan().all() if bad else update.tolist() == [1, -INF]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU takes the tensors of this one")
@pytest.mark.parametrize("bad", [False, True])
def test_a_gpu_does_the_same_without_telling_the_host(
    bad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = values(states("cpu")[not bad])
    with torch.no_grad(), OtherDevice():
        flag, update = move_there(torch.tensor([bad])), move_there(torch.tensor([1.0, -INF]))
        given = states("cuda")
        wheres: list[Any] = []
        where = torch.where
        monkeypatch.setattr(torch, "where", lambda *a: wheres.append(a) or where(*a))
        monkeypatch.setattr(There, "__bool__", lambda x: pytest.fail("the host read a value"))
        chosen = values(choose(flag, *given))
        blank([update], flag)
    for x, y in zip(chosen, expected, strict=True):
        assert torch.equal(bring_back(x), y)
    assert len(wheres) == 3, "one for each type of the state, and one for the update"
    blanked = bring_back(update)
    assert blanked.isnan().all() if bad else blanked.tolist() == [1, -INF]


def test_gradscaler_skips_a_step_in_which_a_worker_overflowed() -> None:
    for scales, moved, state_moved in pool(2).run(skip_scaled):
        assert scales == [8.0, 8.0, 4.0, 4.0]
        assert moved == [True, False, True] and state_moved == [True, False, True]
