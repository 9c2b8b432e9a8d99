"""gcbench report html live=true: the page follows a sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from needed import patience
from results import result_of


def put(folder: Path, seed: int) -> None:
    run = folder / f"run{seed}"
    run.mkdir(parents=True)
    result = result_of("powersgd/table4/sgd", seed=seed, accuracy=90.0 + seed)
    (run / "result.json").write_text(json.dumps(result))
    (run / "metrics.jsonl").write_text("")


def shows(page: Path, runs: int) -> bool:
    end = time.monotonic() + patience(120)
    while time.monotonic() < end:
        if page.exists() and f'"runs":{runs},' in page.read_text():
            return True
        time.sleep(0.5)
    return False


def test_a_live_page_is_written_again_when_a_run_ends(tmp_path: Path) -> None:
    put(tmp_path / "runs", 1)
    page = tmp_path / "outputs/report.html"
    words = ["report", "html", "results=runs", "live=true"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gcbench", *words],
        cwd=tmp_path,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs tests in the background has its processes ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert shows(page, 1), process.stderr.read() if process.poll() is not None else "no page"
        assert '<meta http-equiv="refresh" content="5">' in page.read_text()
        put(tmp_path / "runs", 2)
        assert shows(page, 2)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=patience(30))
    assert "Traceback" not in errors


def test_a_page_that_is_not_live_stays(tmp_path: Path) -> None:
    put(tmp_path / "runs", 1)
    done = subprocess.run(
        [sys.executable, "-m", "gcbench", "report", "html", "results=runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "refresh" not in (tmp_path / "outputs/report.html").read_text()
