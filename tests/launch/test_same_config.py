"""Processes that torchrun or srun started with different overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
from gloo_pool import pool
from launch_cases import compare
from needed import patience
from processes import gcbench, under_torchrun
from sentence import config_of


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("trainer.batch_size=8", "trainer.batch_size is 32 in process 0 and 8 in process 1"),
        ("norm=l2", "norm is linf in process 0 and l2 in process 1"),
        ("error_feedback=true", "error_feedback is False in process 0 and True in process 1"),
        ("clip_norm=0.5", "clip_norm is None in process 0 and 0.5 in process 1"),
        ("trainer.overlap=true", "trainer.overlap is False in process 0 and True in process 1"),
        ("outputs=elsewhere", "outputs is outputs in process 0 and elsewhere in process 1"),
    ],
)
def test_a_key_that_differs_is_named_to_all(override: str, key: str) -> None:
    errors = pool(2).run(compare, [config_of(), config_of(override)])
    assert errors[0] == errors[1] and errors[0].startswith(
        "the processes were given different configurations: "
    )
    assert key in errors[0]


@pytest.mark.parametrize(
    "override", ["trainer.threads=1", "trainer.launcher=torchrun", "logger.mode=disabled"]
)
def test_what_may_differ_is_not(override: str) -> None:
    assert pool(2).run(compare, [config_of(), config_of(override)]) == [None, None]


def test_a_run_of_different_overrides_ends_before_it_trains(tmp_path: Path) -> None:
    overrides = ("logger.mode=disabled", "trainer.threads=1", "trainer.max_steps=9")
    first, second = ((*overrides, f"trainer.batch_size={size}") for size in (8, 9))
    ended = under_torchrun(gcbench, first, second, folder=tmp_path, timeout=patience(100))
    assert [done.returncode for done in ended] == [1, 1]
    errors = [done.stderr for done in ended]
    assert all(
        "trainer.batch_size is 8 in process 0 and 9 in process 1; type the same overrides" in text
        for text in errors
    ), errors
    assert not list(tmp_path.rglob("metrics.jsonl"))
