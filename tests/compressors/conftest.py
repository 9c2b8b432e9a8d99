"""Fixtures of the compressors' tests."""

from __future__ import annotations

import pytest
from layout_cases import traces_in_one_process
from method_cases import Trace, compressor_of


class VirtualTraces(dict[tuple[str, str], Trace]):
    """What four virtual workers see of a choice and variant, each stepped when first asked for."""

    def __missing__(self, key: tuple[str, str]) -> Trace:
        trace: Trace = traces_in_one_process({key: compressor_of(*key)})[key]
        self[key] = trace
        return trace


@pytest.fixture(scope="session")
def virtual_traces() -> VirtualTraces:
    return VirtualTraces()
