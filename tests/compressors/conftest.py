"""Fixtures of the compressors' tests."""

from __future__ import annotations

import pytest
from method_cases import WORKERS, Trace, compressor_of, trace

from gcbench.comm import Comm


class VirtualTraces(dict[tuple[str, str], Trace]):
    """What four virtual workers see of a choice and variant, each stepped when first asked for."""

    def __missing__(self, key: tuple[str, str]) -> Trace:
        self[key] = trace(compressor_of(*key), Comm(WORKERS))
        return self[key]


@pytest.fixture(scope="session")
def virtual_traces() -> VirtualTraces:
    return VirtualTraces()
