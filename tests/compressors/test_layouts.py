"""Layouts of the same workers in processes compute the same updates and count the same bits.

The layouts are four real processes, two of two rows, and one of four.
"""

from __future__ import annotations

import pytest
from method_cases import ALL, DIFFERENT, Trace, compose_method, compressor_of, variants

from gcbench.check.layouts import check_bits, check_replicas, check_residuals, check_updates_agree
from gcbench.check.promises import rounding_of_sums
from gcbench.compressors import Compressor
from gcbench.compressors.entropy_coded import CODES
from gcbench.compressors.exchange import GatherExchange

Traces = dict[str, list[dict[tuple[str, str], Trace]]]
each_variant = pytest.mark.parametrize(("choice", "variant"), DIFFERENT)
each_layout = pytest.mark.parametrize("layout", ["4x1", "2x2"])


@each_layout
@each_variant
def test_updates_agree_with_those_of_virtual_workers(
    traces: Traces, layout: str, choice: str, variant: str
) -> None:
    processes = [process[choice, variant] for process in traces[layout]]
    check_updates_agree(
        compressor_of(choice, variant), traces["1x4"][0][choice, variant], processes
    )


def innermost(compressor: Compressor) -> Compressor:
    while hasattr(compressor, "inner"):
        compressor = compressor.inner
    return compressor


def test_codes_of_all_tensors_need_no_sums() -> None:
    """Thus the exact comparison above is made for them."""
    gathered = [
        key
        for key in DIFFERENT
        if isinstance(innermost(compressor_of(*key)), GatherExchange) and key[1] == "all tensors"
    ]
    assert ("qsgd", "all tensors") in gathered
    assert all(rounding_of_sums(compressor_of(*key)) == 0 for key in gathered)


@each_layout
@each_variant
def test_updates_are_identical_on_every_rank(
    traces: Traces, layout: str, choice: str, variant: str
) -> None:
    check_replicas([process[choice, variant] for process in traces[layout]])


@each_layout
@each_variant
def test_every_worker_remembers_what_its_virtual_twin_does(
    traces: Traces, layout: str, choice: str, variant: str
) -> None:
    check_residuals(
        traces["1x4"][0][choice, variant], [process[choice, variant] for process in traces[layout]]
    )


@each_layout
@each_variant
def test_metered_bits_are_equal(traces: Traces, layout: str, choice: str, variant: str) -> None:
    check_bits(
        traces["1x4"][0][choice, variant], [process[choice, variant] for process in traces[layout]]
    )


def test_ragged_messages_are_the_same_in_any_layout(traces: Traces) -> None:
    """The contract tests compare updates; this one the bits of each worker, which differ."""
    coded = [key for key in ALL if variants(key[0])[key[1]].get("code", "fixed") != "fixed"]
    assert {
        compose_method(choice, f"code={variants(choice)[variant]['code']}")["code"]
        for choice, variant in coded
    } == set(CODES)
    for key in coded:
        virtual = traces["1x4"][0][key]
        assert len(set(virtual.sent_bits)) > 1
        for layout in ("4x1", "2x2"):
            assert sum((seen[key].sent_bits for seen in traces[layout]), []) == virtual.sent_bits
            assert (
                sum((seen[key].received_bits for seen in traces[layout]), [])
                == virtual.received_bits
            )
