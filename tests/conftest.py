"""For all tests."""

import multiprocessing
from collections.abc import Generator

import pytest
import torch
from needed import unexpected

from gcbench.launch import local

# As in the processes that tests start: small tensors gain nothing from more, and some sums and factorisations round by them.
torch.set_num_threads(1)


@pytest.fixture
def copied_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are copies of this one, which spares each 5 s of imports; tests of launching start them as users do."""
    monkeypatch.setattr(local, "_PROCESSES", multiprocessing.get_context("fork"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip is a failure where what the test needs should be."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        if problem := unexpected(report.longrepr[2]):
            report.outcome, report.longrepr = "failed", problem
    return report
