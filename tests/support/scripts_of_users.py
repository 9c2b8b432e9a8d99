"""Scripts in a process of their own, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python(*arguments: str, folder: Path | None = None, **environment: str) -> str:
    """Return what a Python command prints, in the environment that users have."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
