"""Three steps of every choice in its variants in each layout, which the tests read."""

from __future__ import annotations

import pytest
from gloo_pool import pool
from layout_cases import traces_in_one_process, traces_over_gloo
from method_cases import DIFFERENT, Trace, compressor_of

Traces = dict[str, list[dict[tuple[str, str], Trace]]]


@pytest.fixture(scope="session")
def virtual_traces() -> dict[tuple[str, str], Trace]:
    """Return what four virtual workers see of every choice and of variants that differ."""
    traces: dict[tuple[str, str], Trace] = traces_in_one_process(
        {key: compressor_of(*key) for key in DIFFERENT}
    )
    return traces


@pytest.fixture(scope="session")
def traces(virtual_traces: dict[tuple[str, str], Trace]) -> Traces:
    """Return what each process saw, by layout (processes x rows).

    Only one file asks, as this takes a minute.
    """
    pool(4), pool(2)  # start together
    compressors = {key: compressor_of(*key) for key in DIFFERENT}
    return {
        "1x4": [virtual_traces],
        "4x1": pool(4).run(traces_over_gloo, compressors),
        "2x2": pool(2).run(traces_over_gloo, compressors),
    }
