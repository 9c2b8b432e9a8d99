"""Processes on two machines whose link fails: both end in time, and say why."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from needed import patience
from nightly import slow_but
from processes import Copy
from sentence import config_of
from two_hosts import gcbench_on, two_hosts, why_not

from gcbench.runner.config.errors import RunFailed
from gcbench.runner.launch import start
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.result import Begun

TIMEOUT = 5
FIRST = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "first"}
QUICK = (
    *"trainer.max_steps=100000 trainer.log_every=10 trainer.eval_every=null".split(),
    *"trainer.error_every=null trainer.threads=1".split(),
    f"trainer.timeout_seconds={TIMEOUT}",
    *"model.widths=[16] logger=none directory=run".split(),
)


@pytest.mark.parametrize("case", slow_but(["cut"], ["cut", "overlap", "killed"]))
def test_both_ranks_end_in_time_when_their_link_fails(tmp_path: Path, case: str) -> None:
    """Calls over a dead link return after a quarter of an hour, when TCP gives up."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    overrides = (*QUICK, *(["trainer.overlap=true"] if case == "overlap" else []))
    with two_hosts() as hosts, ExitStack() as stack:
        ranks = [
            stack.enter_context(
                Copy(
                    gcbench_on,
                    str(host),
                    *overrides,
                    folder=tmp_path,
                    environment=hosts.environment(rank),
                )
            )
            for rank, host in enumerate(hosts.namespaces)
        ]
        while not (tmp_path / "run/metrics.jsonl").exists():
            assert {rank.returncode for rank in ranks} == {None}, ranks[0].stderr + ranks[1].stderr
            time.sleep(0.05)
        hosts.cut()
        if case == "killed":
            ranks[0].kill()
        ended = [rank.wait(patience(TIMEOUT + 15)) for rank in ranks]
    assert ended[1].returncode == 1, ended[1].stderr
    assert "the store at 10.77.0.1:29500, where the others" in ended[1].stderr
    if case != "killed":
        assert ended[0].returncode == 1, ended[0].stderr
        assert "for worker process 1, which does not answer" in ended[0].stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["status"] == "failed" and "does not answer" in result["reason"]


def test_a_directory_that_does_not_answer_does_not_hold_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one on a machine behind a dead link; here it is a pipe that nobody writes to."""

    def fail(*args: Any) -> None:
        os.mkfifo(tmp_path / "failure-1.json")
        raise RuntimeError("waited in vain")

    monkeypatch.setattr(start, "FILES_SECONDS", 0.5)
    monkeypatch.setattr(start, "work", fail)
    config = config_of("trainer.workers=2")
    plan = make_plan(config, Machine(2, 0, FIRST))
    with pytest.raises(RunFailed, match="worker 0 failed: RuntimeError: waited in vain"):
        begun = start.Start(config, plan, RunFiles(tmp_path), in_sweep=False, rank=0, anew=False)
        begun._run(Begun.here(), None, [])
    assert f"{tmp_path} does not answer" in caplog.text
