"""Every function of gcbench has an example in its docstring, which runs as it is written."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from docstring_cases import example_of, run_example
from gloo_pool import pool

import gcbench

FUNCTIONS = [name for name in gcbench.__all__ if inspect.isfunction(getattr(gcbench, name))]
ALONE = {"run", "sweep", "load_runs", "codec", "join"}  # they need no other process
MADE = {"build": "compression", "comm_hook": "state", "run": "result", "sweep": "results"}
MADE |= {"load_runs": "runs", "codec": "message", "local_steps": "local", "profile": "profile"}
MADE |= {"compress": "compression", "compress_weights": "weights"}


def test_all_functions_have_one() -> None:
    assert {name for name in FUNCTIONS if example_of(name)} == {*FUNCTIONS}
    assert MADE.keys() | {"join"} == {*FUNCTIONS}


@pytest.mark.parametrize("name", sorted(MADE))
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "load_runs":
        short = ["trainer.max_steps=2", "trainer.codec_backend=eager", "logger=none"]
        gcbench.run(*short, outputs=str(tmp_path), bits=4)
    for made in pool(1 if name in ALONE else 2).run(run_example, name, str(tmp_path)):
        assert MADE[name] in made
