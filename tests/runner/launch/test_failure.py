"""What is told of a process that failed."""

from __future__ import annotations

import subprocess

from gcbench.core.errors import LONGEST, in_one_line
from gcbench.runner.launch.failure import describe_exit, failure_of


def test_every_way_to_end_has_words() -> None:
    for killer, says in ((9, "SIGKILL"), (37, "signal 37"), (40, "signal 40"), (64, "SIGRTMAX")):
        ended = subprocess.run(["bash", "-c", f"kill -{killer} $$"])
        assert describe_exit(ended.returncode) == f"killed by {says}"
    assert describe_exit(3) == "exit code 3"


def test_a_long_reason_keeps_its_beginning_and_its_end() -> None:
    reason = failure_of(ValueError(f"first {'x' * 5000} last"), 0).reason
    assert reason.startswith("ValueError: first xxx") and reason.endswith("xxx last")
    assert f"[... {5000 + len('ValueError: first  last') - LONGEST:,} characters ...]" in reason


def test_a_first_line_that_only_leads_on_is_not_all_that_is_told() -> None:
    error = RuntimeError("backend='inductor' raised:\nCppCompileError: no such file\nmore")
    assert in_one_line(error) == (
        "RuntimeError: backend='inductor' raised: CppCompileError: no such file"
    )
    assert in_one_line(RuntimeError("one\ntwo")) == "RuntimeError: one"
    assert in_one_line(RuntimeError()) == "RuntimeError: "
