"""Dashboards are built and validated by W&B's own library, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from needed import patience

pytestmark = pytest.mark.usefixtures("here")


def dashboards(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gcbench", "dashboards", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=patience(120),
    )


def panels(node: Any) -> list[str]:
    """Return the titles of all panels in a specification."""
    if isinstance(node, dict):
        title = node["config"].get("chart_title") if "view_type" in node else None
        return [title] * (title is not None) + [t for value in node.values() for t in panels(value)]
    return [t for value in node for t in panels(value)] if isinstance(node, list) else []


def specifications(*arguments: str) -> list[Any]:
    done = dashboards("team/gcbench", "dry_run=true", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_all_runs_and_every_paper_have_a_workspace_and_a_report_with_the_same_panels() -> None:
    made = specifications()
    assert len(made) == 2 * (1 + 6)
    for nth, (workspace, report) in enumerate(zip(made[::2], made[1::2], strict=True)):
        assert panels(workspace["spec"]) == panels(report["spec"]) != []
        of_paper = json.dumps([workspace, report]).count('{"section": "config", "name": "paper"}')
        assert (of_paper > 0) == (nth > 0)


def test_the_runs_of_a_sweep_are_chosen_by_their_name() -> None:
    for dashboard in specifications("name=lr-sweep"):
        assert '"name": "name"}, "op": "=", "value": "lr-sweep"' in json.dumps(dashboard)


def test_a_name_may_have_quotes() -> None:
    name = """it's a "sweep\""""
    for dashboard in specifications(f"name={name}"):
        value = json.dumps(name)
        assert f'"name": "name"}}, "op": "=", "value": {value}' in json.dumps(dashboard)


def test_what_the_server_says_is_one_sentence(tmp_path: Path) -> None:
    """Without an API key nothing is sent."""
    done = dashboards(
        "team/gcbench",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "WANDB_MODE": "online"},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("gcbench dashboards: No API key configured")
    assert "Traceback" not in done.stderr
