"""A mistake in what is typed for a script is one sentence, before anything is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from needed import patience

SCRIPTS = Path(__file__).parents[2] / "scripts"


def mistake(*arguments: str, **env: str) -> str:
    """Return the last line that scripts/turns prints when it refuses its arguments."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "turns"), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | env,
        timeout=patience(120),
    )
    assert done.returncode and "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("case", ["steps", "sharded", "predictions", "reach", "virtual"])
def test_no_rounds_have_no_median(case: str) -> None:
    overrides = ["model=mlp"] if case in ("steps", "virtual") else []
    refused = mistake(case, *overrides, "--rounds", "0")
    assert "argument --rounds: 0: type a number of turns" in refused


def test_an_unknown_case_is_told() -> None:
    assert mistake("step") == (
        "scripts/turns step: type one of steps, sharded, predictions, reach, virtual"
    )


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("modl=mlp", "modl=mlp: no such key with these choices; did you mean model=mlp?"),
        ("trainer.threads=4", "trainer.threads=4: trainer.threads=1 is fixed here; leave it out"),
        ("compressor=qsgd", "compressor=qsgd: choose methods with --methods; leave it out"),
    ],
)
def test_virtual_workers_refuses_what_it_would_ignore(override: str, says: str) -> None:
    assert says in mistake("virtual", override)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.gpus=4", "trainer.gpus=4: trainer.gpus=2 is fixed here; leave it out"),
        ("++optimizer.momentum=0.9", "optimizer.momentum=0 is fixed here; leave it out"),
        ("compressor=qsgd", "compressor=qsgd: all methods take turns here; leave it out"),
    ],
)
def test_steps_refuses_what_it_would_ignore(override: str, says: str) -> None:
    assert says in mistake("steps", "model=mlp", override, RANK="0", WORLD_SIZE="2")
