"""What not every machine has: where it is missing, tests that need it are skipped and say so.

The reason for a skip is recognized by its words.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

KINDS = {
    "cpu": "a machine without a GPU",
    "gpu": "a CUDA device",
    "data": "the data sets under $GCBENCH_DATA",
    "linux_doc": "Debian's linux-doc-6.1, unpacked under $GCBENCH_DATA",
    "slurm": "Debian's slurm-wlm, slurmdbd, slurm-wlm-mysql-plugin, munge and mariadb-server",
    "netns": "root, ip and tc, for network namespaces with links between them",
    "cgroup": "root, and the cpu controller of cgroup v1, where threads are in groups",
    "compiler": "a C++ compiler",
    "triton": "PyTorch built for CUDA, with Triton and ptxas, which compile without a GPU",
    "root": "root",
    "submitit": "the packages of gcbench[slurm]",
    "integrations": "the packages of gcbench[integrations]",
    "datasets": "the package datasets of Hugging Face, of gcbench[test]",
    "chromium": "Debian's chromium",
}
# The kinds that this machine has, separated by commas. Once it is set, skipping a test that needs
# one of them is a failure, as is skipping one for a reason that is not in KINDS.
EXPECT = "GCBENCH_EXPECT"


def lacks(kind: str, why: str) -> str:
    """Return the reason for a skip."""
    assert kind in KINDS
    return f"needs {kind}: {why}"


def skip(kind: str, why: str) -> NoReturn:
    """Skip the running test."""
    pytest.skip(lacks(kind, why))


def unexpected(reason: str) -> str | None:
    """Return why a skip for this reason is a failure here, or None if it is not."""
    if EXPECT not in os.environ:
        return None
    expected = {kind for kind in os.environ[EXPECT].split(",") if kind}
    if unknown := expected - KINDS.keys():
        return f"{EXPECT}={os.environ[EXPECT]}: {unknown.pop()} is none of {', '.join(KINDS)}"
    kind = reason.removeprefix("Skipped: ").removeprefix("needs ").partition(":")[0]
    if kind in expected:
        return (
            f"{EXPECT} says that {kind} is here ({KINDS[kind]}), but the test was skipped: {reason}"
        )
    if kind not in KINDS:
        return f"skipped for a reason that tests/support/needed.py does not know: {reason}"
    return None


def patience(seconds: float) -> float:
    """Return how many seconds to wait for what takes `seconds` at most on two idle cores."""
    return seconds * float(os.environ.get("GCBENCH_PATIENCE", "1"))
