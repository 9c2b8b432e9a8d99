"""Language-model windows: contiguous shards, targets one word ahead, state that can be carried."""

from __future__ import annotations

import torch

from gcbench.runner.data import Data, TokenData

WHERE = {"epoch": 0, "workers": 3, "batch_size": 2, "seed": 0}


def count_up(train: int = 101, test: int = 45, bptt: int = 4) -> TokenData:
    return TokenData("counting", 200, torch.arange(train), torch.arange(test), bptt)


def test_targets_are_the_inputs_one_word_later() -> None:
    data = count_up()
    for step in range(data.steps_per_epoch(3, 2)):
        inputs, targets = data.batch(step=step, worker=1, **WHERE)
        assert inputs.shape == targets.shape == (2, 4)
        assert torch.equal(targets, inputs + 1)


def test_workers_own_contiguous_parts() -> None:
    data = count_up()
    # 33 tokens per worker make 16 per column, and so 3 full windows of 4.
    assert data.steps_per_epoch(3, 2) == 3
    for worker in range(3):
        windows = [data.batch(step=step, worker=worker, **WHERE)[0] for step in range(3)]
        columns = torch.cat(windows, dim=1)
        assert columns[0].tolist() == list(range(33 * worker, 33 * worker + 12))
        assert columns[1].tolist() == list(range(33 * worker + 16, 33 * worker + 28))


def test_neither_epoch_nor_seed_shuffles() -> None:
    data = count_up()
    first, _ = data.batch(step=0, worker=0, **WHERE)
    again, _ = data.batch(step=0, worker=0, **{**WHERE, "epoch": 5, "seed": 7})
    assert torch.equal(first, again)


def test_test_split_ends_with_a_short_window() -> None:
    data = count_up(test=45)
    windows = [data.test_batch(index, 2) for index in range(data.test_batches(2))]
    assert [tuple(inputs.shape) for inputs, _ in windows] == [(2, 4)] * 5 + [(2, 1)]
    assert all(torch.equal(targets, inputs + 1) for inputs, targets in windows)


def test_too_few_tokens_give_no_steps() -> None:
    assert count_up(train=5).steps_per_epoch(3, 2) == 0
    assert count_up(test=5).test_batches(10) == 0


def test_token_data_is_data() -> None:
    data = count_up().to(torch.device("cpu"))
    assert isinstance(data, Data)
    assert (data.kind, data.shape, data.train_samples) == ("tokens", (), 101)
