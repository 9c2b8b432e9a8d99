"""Runs that compile codecs after their second step and change to them after their fourth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes

from gcbench.launch import compilation, compiler_process
from gcbench.launch.compiler_process import Compiler


def make_impatient(marks: Path, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make runs compile and load codecs even if it saves no time, and wait for it.

    The marks that say what has been compiled are in the folder `marks`.
    """

    def wait(compiler: Compiler) -> bool:
        compiler._process.wait()
        return True

    replace(compilation, "WORTH_SECONDS", 0.0)
    replace(compilation, "WORTH_LOADING_SECONDS", 0.0)
    replace(compilation, "LOOK_STEPS", 2)
    replace(compiler_process, "compiler_cache", lambda: marks)
    # With the run's own priority: at a lower one it would wait while others use the cores.
    replace(compiler_process, "_START", compiler_process._START.replace("19", "0"))
    replace(Compiler, "has_ended", wait)


def impatient_gcbench(*arguments: str) -> None:
    """Run the gcbench command after `make_impatient`, with marks in the current folder."""
    make_impatient(Path())
    processes.gcbench(*arguments)
