"""Processes that need not import anything: copies of a server that has.

Each process of the tests has one server. Importing torch, scikit-learn and torch's compiler (with
the first optimizer) costs seconds of one core.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["torch._dynamo", "gcbench.check.report", "gcbench.data.digits", "gcbench.launch.start"]
)


def command(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    read: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `gcbench` in a process of its own, as its script does it.

    `read`: somebody reads what it prints.
    """
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        process = SERVER.Process(
            target=_command, args=(words, folder, dict(environment), out if read else None, err)
        )
        process.start()
        try:
            process.join(timeout)
            assert process.exitcode is not None, f"{words} still runs after {timeout} s"
        finally:
            process.kill()
        return subprocess.CompletedProcess(
            words, process.exitcode, out.read_text() if read else "", err.read_text()
        )


def _command(
    words: Sequence[str], folder: Path, environment: dict[str, str], out: Path | None, err: Path
) -> None:
    unread, written = os.pipe()
    os.dup2(written, 1)
    os.close(unread)  # as `| head -1` does
    for file, number in ((out, 1), (err, 2)):
        if file is not None:
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["gcbench", *words]
    from gcbench.cli import main

    main()
