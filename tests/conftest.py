"""Fixtures and hooks for all tests."""

import logging
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import durations
import pytest
import torch
from backends import use
from composing import merge_files_once
from needed import unexpected
from record import Recorder

from gcbench.core.codecs.kernels import keep_backend
from gcbench.papers.commands import add_commands
from gcbench.runner.launch import local

# As in the processes that tests start: small tensors gain nothing from more threads, and some sums
# and factorizations round differently with another number of threads.
torch.set_num_threads(1)

# Otherwise PyTorch compiles in a pool of processes, for which forks of this one wait forever.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

merge_files_once()
add_commands()

# Autograd looks for devices once, at the first backward pass, and starts one thread for each. This
# happens here, before tests make torch.compile see a GPU that does not exist: a process with such
# threads cannot be forked.
if not torch.cuda.is_available():
    torch.ones(1, requires_grad=True).sum().backward()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write what passed, and the commit, to this file")
    durations.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--record")
    if file and not hasattr(config, "workerinput"):  # workers of pytest-xdist report to this one
        config.pluginmanager.register(Recorder(file))
    durations.keep(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    durations.leave_out_long(config, items)


@pytest.fixture(autouse=True)
def own_backend() -> Iterator[None]:
    """Leave the codecs of the process as they were: `gcbench.compress` chooses them for good."""
    with keep_backend():
        yield


@pytest.fixture(params=["eager", "native"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with eager codecs, and again with native ones."""
    yield from use(request.param)


@pytest.fixture
def copied_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start worker processes by forking this one, which saves each of them 5 s of imports.

    A few tests start them as users do: see test_local.py and the script in test_runs.py.
    """
    monkeypatch.setattr(local, "_PROCESSES", multiprocessing.get_context("fork"))


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `gcbench` in `tmp_path` and returns status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the command sets it for good
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def start(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gcbench", *arguments])
        # The command sets this variable; as it is set here, monkeypatch restores it.
        monkeypatch.setitem(os.environ, "HYDRA_FULL_ERROR", "0")
        # Hydra adds handlers to the root logger, which would go on writing to this test's streams.
        handlers = {
            log: list(log.handlers) for log in (logging.getLogger("gcbench"), logging.getLogger())
        }
        try:
            runpy.run_module("gcbench", run_name="__main__", alter_sys=False)
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            for log, before in handlers.items():
                log.handlers[:] = before
            logging.getLogger("gcbench").propagate = True
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure if this machine should have what the test needs."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        if problem := unexpected(report.longrepr[2]):
            report.outcome, report.longrepr = "failed", problem
    return report
