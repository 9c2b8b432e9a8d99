"""For all tests."""

import multiprocessing

import pytest
import torch

from gcbench.launch import local

# As in the processes that tests start: small tensors gain nothing from more, and some sums and factorisations round by them.
torch.set_num_threads(1)


@pytest.fixture
def copied_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are copies of this one, which spares each 5 s of imports; tests of launching start them as users do."""
    monkeypatch.setattr(local, "_PROCESSES", multiprocessing.get_context("fork"))
