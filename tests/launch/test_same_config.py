"""Processes that torchrun or srun started with different words."""

from __future__ import annotations

import pytest
from gloo_pool import pool
from launch_cases import compared
from sentence import config_of


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("trainer.batch_size=8", "trainer.batch_size is 32 in process 0 and 8 in process 1"),
        ("norm=l2", "norm is linf in process 0 and l2 in process 1"),
        ("error_feedback=true", "error_feedback is False in process 0 and True in process 1"),
        ("clip_norm=0.5", "clip_norm is None in process 0 and 0.5 in process 1"),
        ("trainer.overlap=true", "trainer.overlap is (absent) in process 0 and True in process 1"),
        ("outputs=elsewhere", "outputs is outputs in process 0 and elsewhere in process 1"),
    ],
)
def test_a_key_that_differs_is_named_to_all(word: str, key: str) -> None:
    said = pool(2).run(compared, [config_of(), config_of(word)])
    assert said[0] == said[1] and said[0].startswith("the processes were given different configurations: ")
    assert key in said[0]


@pytest.mark.parametrize("word", ["trainer.threads=1", "trainer.launcher=torchrun", "logger.mode=disabled"])
def test_what_may_differ_is_not(word: str) -> None:
    assert pool(2).run(compared, [config_of(), config_of(word)]) == [None, None]
