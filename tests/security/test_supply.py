"""What an installation and the continuous integration take from others."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
# The last releases with a published hole in what gcbench could be given: images, YAML, pickled
# models or arrays.
WITH_HOLES = {"pillow": "12.2.0", "pyyaml": "5.3.1", "scikit-learn": "1.4.2", "numpy": "1.21.6"}


def test_actions_are_those_of_a_commit() -> None:
    """A tag may be moved to other code; GitHub runs it with the repository's token."""
    used = []
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
        used += [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert used and [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one)] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib")
def test_no_release_with_a_known_hole_satisfies_an_installation() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    assert [name for name, release in WITH_HOLES.items() if release in wanted[name]] == []
