"""Each layout runs every collective once; the tests read what came out."""

from __future__ import annotations

import comm_cases
import pytest
from comm_cases import Outcome
from gloo_pool import pool

Outcomes = dict[str, list[dict[str, Outcome]]]


@pytest.fixture(scope="session")
def outcomes() -> Outcomes:
    """Return what each process saw, by layout (processes x rows)."""
    pool(4), pool(2)  # start together
    return {
        "1x4": [comm_cases.in_one_process()],
        "4x1": pool(4).run(comm_cases.over_gloo),
        "2x2": pool(2).run(comm_cases.over_gloo),
    }
