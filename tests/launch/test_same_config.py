"""Processes that torchrun or srun started with different words."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gloo_pool import pool
from launch_cases import compare
from processes import command
from sentence import config_of


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("trainer.batch_size=8", "trainer.batch_size is 32 in process 0 and 8 in process 1"),
        ("norm=l2", "norm is linf in process 0 and l2 in process 1"),
        ("error_feedback=true", "error_feedback is False in process 0 and True in process 1"),
        ("clip_norm=0.5", "clip_norm is None in process 0 and 0.5 in process 1"),
        ("trainer.overlap=true", "trainer.overlap is False in process 0 and True in process 1"),
        ("outputs=elsewhere", "outputs is outputs in process 0 and elsewhere in process 1"),
    ],
)
def test_a_key_that_differs_is_named_to_all(word: str, key: str) -> None:
    errors = pool(2).run(compare, [config_of(), config_of(word)])
    assert errors[0] == errors[1] and errors[0].startswith(
        "the processes were given different configurations: "
    )
    assert key in errors[0]


@pytest.mark.parametrize(
    "word", ["trainer.threads=1", "trainer.launcher=torchrun", "logger.mode=disabled"]
)
def test_what_may_differ_is_not(word: str) -> None:
    assert pool(2).run(compare, [config_of(), config_of(word)]) == [None, None]


def test_a_run_of_different_words_ends_before_it_trains(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }

    def one(rank: int) -> str:
        words = (
            "logger.mode=disabled",
            "trainer.threads=1",
            f"trainer.batch_size={8 + rank}",
            "trainer.max_steps=9",
        )
        place = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        done = command(words, tmp_path, place, timeout=100)
        assert done.returncode == 1
        return done.stderr

    with ThreadPoolExecutor() as both:
        errors = list(both.map(one, (0, 1)))
    assert all(
        "trainer.batch_size is 8 in process 0 and 9 in process 1; type the same words" in text
        for text in errors
    ), errors
    assert not list(tmp_path.rglob("metrics.jsonl"))
