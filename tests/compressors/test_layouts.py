"""Four real processes, two of two rows, and one of four compute the same updates and count the same bits."""

from __future__ import annotations

import pytest
import torch
from method_cases import ALL, STEPS, WORKERS, Trace, compressor_of, flat, trace

from gcbench.comm import VirtualComm
from gcbench.compressors import Compressor, Grads
from gcbench.compressors.exchange import Gathered

Traces = dict[str, list[dict[tuple[str, str], Trace]]]
each_variant = pytest.mark.parametrize(("choice", "variant"), ALL)
each_layout = pytest.mark.parametrize("layout", ["4x1", "2x2"])


class GathersOnly(VirtualComm):
    """Knows whether sums were asked for, whose rounding depends on the layout."""

    summed = False

    def _reduce(self, *args: object) -> list[torch.Tensor]:
        self.summed = True
        return super()._reduce(*args)  # type: ignore[arg-type]


def gathers_only(choice: str, variant: str) -> bool:
    comm = GathersOnly(WORKERS)
    trace(compressor_of(choice, variant), comm)
    return not comm.summed


def equal(a: Grads, b: Grads) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def assert_near(a: Grads, b: Grads) -> None:
    for name in a:
        error = (a[name].double() - b[name].double()).norm()
        assert error <= 1e-5 * b[name].double().norm(), name


HALF = {"fp16": 2e-3, "bf16": 2e-2}


@each_layout
@each_variant
def test_updates_agree_with_those_of_virtual_workers(traces: Traces, layout: str, choice: str, variant: str) -> None:
    """To the bit where codes are gathered; up to the order of sums where means are taken."""
    virtual = traces["1x4"][0][choice, variant]
    exact = gathers_only(choice, variant)
    for process in traces[layout]:
        for real, expected in zip(process[choice, variant].updates, virtual.updates, strict=True):
            if exact:
                assert equal(real, expected)
            elif choice in HALF:
                torch.testing.assert_close(flat(real), flat(expected), rtol=HALF[choice], atol=HALF[choice] / 10)
            else:
                assert_near(real, expected)


def innermost(compressor: Compressor) -> Compressor:
    while hasattr(compressor, "inner"):
        compressor = compressor.inner
    return compressor


def test_codes_of_all_tensors_need_no_sums() -> None:
    """So that the exact comparison above is made."""
    found = [key for key in ALL if isinstance(innermost(compressor_of(*key)), Gathered) and key[1] in ("all tensors", "ecq")]
    assert ("qsgd", "all tensors") in found
    assert all(gathers_only(*key) for key in found)


@each_layout
@each_variant
def test_updates_are_identical_on_every_rank(traces: Traces, layout: str, choice: str, variant: str) -> None:
    first, *others = traces[layout]
    for other in others:
        for number in range(STEPS):
            assert equal(other[choice, variant].updates[number], first[choice, variant].updates[number])


@each_layout
@each_variant
def test_every_worker_remembers_what_its_virtual_twin_does(traces: Traces, layout: str, choice: str, variant: str) -> None:
    virtual = traces["1x4"][0][choice, variant]
    processes = [process[choice, variant] for process in traces[layout]]
    scale = max(float(flat(update).abs().max()) for update in virtual.updates)
    for number in range(STEPS):
        for depth, expected in enumerate(virtual.memories[number]):
            for name, rows in expected.items():
                real = torch.cat([process.memories[number][depth][name] for process in processes])
                torch.testing.assert_close(real, rows, rtol=1e-4, atol=1e-5 * scale)


@each_layout
@each_variant
def test_metered_bits_are_equal(traces: Traces, layout: str, choice: str, variant: str) -> None:
    virtual = traces["1x4"][0][choice, variant]
    processes = [process[choice, variant] for process in traces[layout]]
    assert [bits for process in processes for bits in process.sent_bits] == virtual.sent_bits
    assert [bits for process in processes for bits in process.received_bits] == virtual.received_bits
    assert min(virtual.sent_bits) > 0
