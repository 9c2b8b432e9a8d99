"""Each layout runs three steps of every choice in its variants once; the tests read what came out."""

from __future__ import annotations

import pytest
from gloo_pool import pool
from method_cases import DIFFERENT, Trace, compressor_of, traces_in_one_process, traces_over_gloo

Traces = dict[str, list[dict[tuple[str, str], Trace]]]


@pytest.fixture(scope="session")
def traces() -> Traces:
    """Layout (processes x rows) to what each of its processes saw of every choice and of variants that differ."""
    pool(4), pool(2)  # start together
    compressors = {key: compressor_of(*key) for key in DIFFERENT}
    return {
        "1x4": [traces_in_one_process(compressors)],
        "4x1": pool(4).run(traces_over_gloo, compressors),
        "2x2": pool(2).run(traces_over_gloo, compressors),
    }
