"""Fixtures and hooks of all tests."""

import multiprocessing
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from backends import use
from composing import merge_files_once
from needed import unexpected
from record import Recorder

from gcbench.launch import local

# As in the processes that tests start: small tensors gain nothing from more threads, and some sums
# and factorizations round by their number.
torch.set_num_threads(1)

# Otherwise PyTorch compiles in a pool of processes, for which copies of this one wait for ever.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

merge_files_once()

# Autograd looks for devices once, at the first backward pass, and starts a thread for each. To
# torch.compile a GPU seems to be there, and a process with such threads cannot be copied.
if not torch.cuda.is_available():
    torch.ones(1, requires_grad=True).sum().backward()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write what passed, and the commit, to this file")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--record")
    if file and not hasattr(config, "workerinput"):  # processes of pytest-xdist report to this one
        config.pluginmanager.register(Recorder(file))


@pytest.fixture(params=["eager", "compiled"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with eager codecs, and again with compiled ones."""
    yield from use(request.param)


@pytest.fixture
def copied_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start worker processes as copies of this one, which spares each 5 s of imports.

    A few tests start them as users do: see test_local.py, and the script in test_runs.py.
    """
    monkeypatch.setattr(local, "_PROCESSES", multiprocessing.get_context("fork"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a skip a failure where what the test needs should be."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        if problem := unexpected(report.longrepr[2]):
            report.outcome, report.longrepr = "failed", problem
    return report
