"""Real data sets: a test that asks for one is skipped if it is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from needed import skip


@pytest.fixture
def real_root() -> Callable[..., str]:
    root = Path(os.environ.get("GCBENCH_DATA", "~/gcbench-data")).expanduser()

    def holding(folder: str, kind: str = "data") -> str:
        if not any((root / folder).glob("*")):
            skip(kind, f"no {folder} under {root}; set GCBENCH_DATA to where it is")
        return str(root)

    return holding
