"""Dashboards are built and validated by W&B's own library, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from needed import patience

SCRIPT = Path(__file__).parents[2] / "scripts" / "dashboards"


def dashboards(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=patience(120)
    )


def panels(node: Any) -> list[str]:
    """Return the titles of all panels in a specification."""
    if isinstance(node, dict):
        title = node["config"].get("chart_title") if "view_type" in node else None
        return [title] * (title is not None) + [t for value in node.values() for t in panels(value)]
    return [t for value in node for t in panels(value)] if isinstance(node, list) else []


def test_every_paper_has_a_workspace_and_a_report_with_the_same_panels() -> None:
    done = dashboards("team/gcbench", "--dry-run")
    assert done.returncode == 0, done.stderr
    specifications = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(specifications) == 2 * 5
    for workspace, report in zip(specifications[::2], specifications[1::2], strict=True):
        assert panels(workspace["spec"]) == panels(report["spec"]) != []
        assert "test/accuracy over bits_sent_per_worker" in panels(report["spec"])
        text = json.dumps(workspace) + json.dumps(report)
        assert (
            '"summary:bits_sent.ratio"' in text
            and text.count('{"section": "config", "name": "paper"}') >= 2
        )


def test_a_project_without_its_entity_is_refused() -> None:
    done = dashboards("gcbench")
    assert done.returncode == 2 and "type ENTITY/PROJECT" in done.stderr
