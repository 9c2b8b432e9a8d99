"""Each Hydra that pyproject.toml allows does what a command asks, and warns of nothing.

They test the Hydra that is installed: .ci/run has them pass under the next one, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from needed import lacks, patience

SHORT = (
    *"logger=none trainer.launcher=virtual trainer.max_steps=2 trainer.threads=1".split(),
    "model.widths=[16]",
)


def gcbench(folder: Path, *arguments: str) -> str:
    """Return what a process of its own prints, as one with modules imported warns of no import."""
    done = subprocess.run(
        [sys.executable, "-m", "gcbench", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "default::UserWarning"},
        capture_output=True,
        text=True,
        timeout=patience(120),
    )
    assert done.returncode == 0, done.stderr
    assert not re.findall(r".*Warning.*|.*[Dd]eprecat.*", done.stderr)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("compressor=qsgd --cfg job", "_target_: gcbench.build"),
        ("--cfg hydra", "_target_: gcbench.runner.command.sweep.SweepProgress"),
        ("--help", "gcbench"),
        ("bench compressor=qsgd sizes=[1000] outputs=outputs", "qsgd"),
    ],
)
def test_a_command_warns_of_nothing(command: str, printed: str, tmp_path: Path) -> None:
    assert printed in gcbench(tmp_path, *command.split())


def test_a_run_and_a_report_of_it_warn_of_nothing(tmp_path: Path) -> None:
    gcbench(tmp_path, "compressor=qsgd", *SHORT)
    assert len(list(tmp_path.glob("outputs/*/result.json"))) == 1
    assert "qsgd" in gcbench(tmp_path, "runs")


def test_a_sweep_warns_of_nothing(tmp_path: Path) -> None:
    assert "row 2 of 2" in gcbench(tmp_path, "-m", "compressor=qsgd", "bits=2,4", *SHORT)
    assert len(list(tmp_path.glob("outputs/*/result.json"))) == 2


@pytest.mark.skipif(
    find_spec("submitit") is None, reason=lacks("submitit", "its processes run the rows")
)
def test_jobs_of_submitit_warn_of_nothing(tmp_path: Path) -> None:
    launcher = ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5")
    gcbench(tmp_path, "-m", *launcher, "compressor=qsgd", "bits=2,4", *SHORT)
    assert len(list(tmp_path.glob("outputs/*/result.json"))) == 2
    logs = list(tmp_path.glob("outputs/.submitit/*/*_log.err"))
    assert len(logs) == 2 and not [log for log in logs if "Warning" in log.read_text()]


def test_a_search_warns_of_nothing(tmp_path: Path) -> None:
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1")
    gcbench(tmp_path, "-m", *search, "optimizer.lr=interval(0.01,0.2)", *SHORT)
    assert len(list(tmp_path.glob("outputs/*/result.json"))) == 2
