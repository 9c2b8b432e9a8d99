"""All layouts of four workers in processes compute the same updates and meter the same bits.

The layouts are four processes of one worker, two of two, and one of four.
"""

from __future__ import annotations

from functools import cache

import torch
from backends import needs_compiler
from gloo_pool import pool
from layout_cases import native_traces_over_gloo, traces_over_gloo
from method_cases import ALL, DIFFERENT, FEW, Trace, compose_method, compressor_of, variants
from nightly import loop_over

from gcbench.core.compressor import Compressor
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.methods.entropy_coded import CODES
from gcbench.runner.check.layouts import (
    check_bits,
    check_replicas,
    check_residuals,
    check_updates_agree,
)
from gcbench.runner.check.promises import rounding_of_sums

Key = tuple[str, str]
DEFAULTS = (torch.float32, torch.float64, torch.bfloat16)
PROCESSES = {"2x2": 2, "4x1": 4}


FAST = {
    "2x2": [key for key in FEW if key[0] in ("qsgd", "powersgd", "top_k", "maxnorm")],
    "4x1": FEW,
}


@cache
def traces(layout: str, fast: bool) -> list[dict[Key, Trace]]:
    """Return each process's traces of the fast cases, or of all others."""
    compressors = {key: compressor_of(*key) for key in DIFFERENT if (key in FAST[layout]) == fast}
    return pool(PROCESSES[layout]).run(traces_over_gloo, compressors)


@loop_over(
    [(layout, *key) for layout in PROCESSES for key in FAST[layout]],
    [(layout, *key) for layout in PROCESSES for key in DIFFERENT],
)
def test_processes_do_what_their_virtual_twins_do(
    layout: str, choice: str, variant: str, virtual_traces: dict[Key, Trace]
) -> None:
    key = choice, variant
    processes = [process[key] for process in traces(layout, key in FAST[layout])]
    check_updates_agree(compressor_of(*key), virtual_traces[key], processes)
    check_replicas(processes)
    check_residuals(virtual_traces[key], processes)
    check_bits(virtual_traces[key], processes)


@cache
def native_traces(default: torch.dtype, fast: bool) -> list[dict[Key, Trace]]:
    compressors = {key: compressor_of(*key) for key in DIFFERENT if (key in FEW) == fast}
    return pool(2).run(native_traces_over_gloo, compressors, default)


@loop_over(
    [(default, *key) for default in DEFAULTS for key in FEW],
    [(default, *key) for default in DEFAULTS for key in DIFFERENT],
)
def test_native_codecs_do_so_too_whatever_the_default_dtype_of_the_user(
    default: torch.dtype, choice: str, variant: str, virtual_traces: dict[Key, Trace]
) -> None:
    needs_compiler()
    key = choice, variant
    processes = [process[key] for process in native_traces(default, key in FEW)]
    check_updates_agree(compressor_of(*key), virtual_traces[key], processes)
    check_replicas(processes)
    check_residuals(virtual_traces[key], processes)
    check_bits(virtual_traces[key], processes)


def innermost(compressor: Compressor) -> Compressor:
    while hasattr(compressor, "inner"):
        compressor = compressor.inner
    return compressor


def test_codes_of_all_tensors_need_no_sums() -> None:
    """This is why the comparison above is exact for them."""
    gathered = [
        key
        for key in DIFFERENT
        if key[1] == "all tensors" and isinstance(innermost(compressor_of(*key)), GatherExchange)
    ]
    assert ("qsgd", "all tensors") in gathered
    assert all(rounding_of_sums(compressor_of(*key)) == 0 for key in gathered)


def test_ragged_messages_differ_by_worker(virtual_traces: dict[Key, Trace]) -> None:
    """Otherwise the test above would compare only one length, which all workers share."""
    coded = [key for key in ALL if variants(key[0])[key[1]].get("code", "fixed") != "fixed"]
    assert {
        compose_method(choice, f"code={variants(choice)[variant]['code']}")["code"]
        for choice, variant in coded
    } == set(CODES)
    for key in coded:
        assert len(set(virtual_traces[key].sent_bits)) > 1
