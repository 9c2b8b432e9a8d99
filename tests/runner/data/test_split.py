"""A part of the training samples is held out in the same way for every data set."""

from __future__ import annotations

import torch

from gcbench.runner.data import ArrayData
from gcbench.runner.data.digits import digits
from gcbench.runner.data.protocol import hold_out
from gcbench.runner.data.synthetic import synthetic, synthetic_rows


def test_every_row_is_kept_or_held_out_and_always_the_same() -> None:
    kept, held = hold_out(101)
    assert (len(kept), len(held)) == (91, 10)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(101))
    assert held.tolist() != list(range(91, 101)) and torch.equal(held, hold_out(101)[1])
    assert len(hold_out(100, share=5)[1]) == 20


def test_arrays_are_scored_on_what_they_do_not_train_on() -> None:
    rows = torch.arange(50)
    train, test = (rows.float()[:, None], rows), (-rows.float()[:, None], rows)
    data = ArrayData("numbered", "classification", 50, train, test)
    valid = data.score_on("valid")
    assert data.score_on("test") is data
    assert (valid.train_samples, valid.test_batches(2)) == (45, 3)
    assert sorted([*valid.train[1].tolist(), *valid.test[1].tolist()]) == rows.tolist()
    assert torch.equal(valid.test[0][:, 0], valid.test[1].float())


def test_factories_pass_the_split_on() -> None:
    for whole, held in [
        (digits(), digits(split="valid")),
        (synthetic(samples=100), synthetic(samples=100, split="valid")),
        (synthetic_rows(100, 7), synthetic_rows(100, 7, split="valid")),
    ]:
        assert (held.train_samples, len(held.test_batch(0, 1000)[0])) == (
            whole.train_samples - whole.train_samples // 10,
            whole.train_samples // 10,
        )
