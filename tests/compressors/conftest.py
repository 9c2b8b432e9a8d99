"""Three steps of every choice in its variants, which several files read."""

from __future__ import annotations

import pytest
from layout_cases import traces_in_one_process
from method_cases import DIFFERENT, Trace, compressor_of


@pytest.fixture(scope="session")
def virtual_traces() -> dict[tuple[str, str], Trace]:
    """Return what four virtual workers see of every choice and of variants that differ."""
    traces: dict[tuple[str, str], Trace] = traces_in_one_process(
        {key: compressor_of(*key) for key in DIFFERENT}
    )
    return traces
