"""Runs that compile codecs after their second step and change to them after their fourth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes

from gcbench.launch import compilation, compiler_process
from gcbench.launch.compiler_process import Compiler


def make_impatient(marks: Path, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let runs compile and load whatever that is worth, wait for that, and mark it in `marks`."""

    def wait(compiler: Compiler) -> bool:
        compiler._process.wait()
        return True

    replace(compilation, "WORTH_SECONDS", 0.0)
    replace(compilation, "WORTH_LOADING_SECONDS", 0.0)
    replace(compilation, "LOOK_STEPS", 2)
    replace(compiler_process, "compiler_cache", lambda: marks)
    # With the priority of the run, or it would wait for as long as others use the cores.
    replace(compiler_process, "_START", compiler_process._START.replace("19", "0"))
    replace(Compiler, "has_ended", wait)


def impatient_gcbench(*arguments: str) -> None:
    """Run what the installed script runs, impatiently; marks are in the folder where it runs."""
    make_impatient(Path())
    processes.gcbench(*arguments)
