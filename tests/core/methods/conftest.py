"""Fixtures for the tests of compressors."""

from __future__ import annotations

import pytest
from method_cases import WORKERS, Trace, compressor_of, trace

from gcbench.core.comm.collectives import Comm


class VirtualTraces(dict[tuple[str, str], Trace]):
    """Traces of four virtual workers by choice and variant, each computed on first use."""

    def __missing__(self, key: tuple[str, str]) -> Trace:
        self[key] = trace(compressor_of(*key), Comm(WORKERS))
        return self[key]


@pytest.fixture(scope="session")
def virtual_traces() -> VirtualTraces:
    return VirtualTraces()
