"""Four workers in four, two or one processes give the same results and bits."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce

import pytest
import torch
import torch.distributed as dist
from comm_cases import (
    RAGGED_LENGTHS,
    REDUCED,
    WORKERS,
    CountingClock,
    Outcome,
    mixed_inputs,
    ragged_inputs,
    reduced_inputs,
    transposed_inputs,
    values,
)
from nightly import each
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import GlooTransport

LAYOUTS = ("1x4", "4x1", "2x2")
EVERYONE = range(WORKERS)
Outcomes = dict[str, list[dict[str, Outcome]]]


def seen(outcomes: Outcomes, layout: str, case: str) -> list[Outcome]:
    """Return what each process saw of a case."""
    return [process[case] for process in outcomes[layout]]


@each("layout", LAYOUTS)
@each("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mean_is_the_mean_of_all_workers(
    outcomes: Outcomes, layout: str, dtype: torch.dtype
) -> None:
    inputs = reduced_inputs(dtype, 0, 0, EVERYONE)
    tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for outcome in seen(outcomes, layout, f"mean {dtype}"):
        for result, rows in zip(outcome.results, inputs, strict=True):
            assert result.dtype == dtype and result.shape == (1, *rows.shape[1:])
            torch.testing.assert_close(
                result.double(), rows.double().mean(0, keepdim=True), rtol=tolerance, atol=tolerance
            )


@each("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_means_agree_between_layouts_and_to_the_bit_between_ranks(
    outcomes: Outcomes, dtype: torch.dtype
) -> None:
    virtual = outcomes["1x4"][0][f"mean {dtype}"].results
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    for layout in ("4x1", "2x2"):
        first, *others = seen(outcomes, layout, f"mean {dtype}")
        for result, expected in zip(first.results, virtual, strict=True):
            torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
        for other in others:
            assert all(map(torch.equal, other.results, first.results))


@each("layout", LAYOUTS)
def test_no_sum_of_large_halves_overflows(outcomes: Outcomes, layout: str) -> None:
    for outcome in seen(outcomes, layout, "mean of large halves"):
        torch.testing.assert_close(outcome.results[0], torch.full((1, 3), 6e4, dtype=torch.float16))


def integer_reduction(verb: str, rows: Tensor) -> Tensor:
    """Return the reduction by Python's arithmetic, row by row."""
    of_two = {"sum": lambda a, b: a + b, "max": max, "min": min, "bitwise_and": lambda a, b: a & b}[
        verb
    ]
    columns = rows.flatten(1).T.tolist() if rows.dim() > 1 else [rows.tolist()]
    return torch.tensor([reduce(of_two, column) for column in columns], dtype=rows.dtype).view(
        1, *rows.shape[1:]
    )


@each("layout", LAYOUTS)
@each(("verb", "dtype"), [key for key in REDUCED if key[0] != "mean"])
def test_reductions_are_exact(
    outcomes: Outcomes, layout: str, verb: str, dtype: torch.dtype
) -> None:
    inputs = reduced_inputs(dtype, *REDUCED[verb, dtype], EVERYONE)
    for outcome in seen(outcomes, layout, f"{verb} {dtype}"):
        for result, rows in zip(outcome.results, inputs, strict=True):
            assert result.dtype == dtype
            assert torch.equal(result, integer_reduction(verb, rows))


@each("layout", LAYOUTS)
@each("verb", ["max", "min"])
def test_a_nan_of_any_worker_is_the_extreme(outcomes: Outcomes, layout: str, verb: str) -> None:
    """gloo by itself keeps a NaN of the first worker only."""
    expected = {"max": [torch.inf, -3e38, 0.0], "min": [3e38, -torch.inf, -0.0]}[verb]
    for outcome in seen(outcomes, layout, f"{verb} of nan"):
        (bits,) = outcome.results[0]
        assert bits[:WORKERS].view(torch.float32).isnan().all()
        assert torch.equal(bits[WORKERS:], torch.tensor(expected).view(torch.int32))


@each("layout", LAYOUTS)
def test_gather_returns_all_rows_in_worker_order(outcomes: Outcomes, layout: str) -> None:
    for outcome in seen(outcomes, layout, "gather"):
        for result, expected in zip(outcome.results, mixed_inputs(EVERYONE), strict=True):
            assert result.dtype == expected.dtype
            assert torch.equal(result, expected)
    for outcome in seen(outcomes, layout, "gather one"):
        assert torch.equal(outcome.results[0], values(EVERYONE, (13,), torch.uint8))


@each("layout", LAYOUTS)
def test_a_message_may_have_empty_parts(outcomes: Outcomes, layout: str) -> None:
    for outcome in seen(outcomes, layout, "gather empty"):
        assert [(x.shape, x.dtype) for x in outcome.results] == [
            ((WORKERS, 0), torch.uint8),
            ((WORKERS, 0), torch.float32),
        ]


@each("layout", LAYOUTS)
def test_ragged_gather_returns_the_true_values_and_zeros_behind(
    outcomes: Outcomes, layout: str
) -> None:
    (codes, floats, whole), _ = ragged_inputs(EVERYONE, RAGGED_LENGTHS)
    for outcome in seen(outcomes, layout, "ragged"):
        for result, rows, lengths in zip(
            outcome.results[:2], (codes, floats), RAGGED_LENGTHS, strict=True
        ):
            expected = torch.zeros(WORKERS, max(lengths), dtype=rows.dtype)
            for k, n in enumerate(lengths):
                expected[k, :n] = rows[k, :n]
            assert result.dtype == rows.dtype
            assert torch.equal(result, expected)
        assert torch.equal(outcome.results[2], whole)


@each("layout", LAYOUTS)
def test_ragged_gather_of_nothing_is_empty(outcomes: Outcomes, layout: str) -> None:
    for outcome in seen(outcomes, layout, "nothing ragged"):
        assert outcome.results[0].shape == (WORKERS, 0)


@each("layout", LAYOUTS)
def test_transpose_gives_each_worker_what_the_others_had_for_it(
    outcomes: Outcomes, layout: str
) -> None:
    rows = torch.cat([outcome.results[0] for outcome in seen(outcomes, layout, "transpose")])
    inputs = transposed_inputs(EVERYONE)
    for worker in EVERYONE:
        for peer in EVERYONE:
            assert torch.equal(rows[worker, peer], inputs[peer, worker])
    codes = torch.cat([outcome.results[0] for outcome in seen(outcomes, layout, "transpose bytes")])
    assert torch.equal(codes, values(EVERYONE, (WORKERS, 5), torch.uint8).transpose(0, 1))


# Counted by hand: a row has 19 values in the reductions, and 71 bytes in the mixed gather. A ragged
# row has three int32 lengths, 1 byte per code, 4 bytes per float, and 16 bytes of the tensor that
# is not ragged.
RAGGED_BYTES = [12 + 0 + 24 + 16, 12 + 9 + 0 + 16, 12 + 4 + 12 + 16, 12 + 1 + 0 + 16]
BITS = {
    "mean torch.float32": ([608] * 4, [608] * 4),
    "mean torch.bfloat16": ([304] * 4, [304] * 4),
    "mean of large halves": ([48] * 4, [48] * 4),
    "sum torch.int8": ([152] * 4, [152] * 4),
    "sum torch.int64": ([1216] * 4, [1216] * 4),
    "max torch.uint8": ([152] * 4, [152] * 4),
    "min torch.float32": ([608] * 4, [608] * 4),
    "bitwise_and torch.int32": ([608] * 4, [608] * 4),
    "gather": ([568] * 4, [3 * 568] * 4),
    "gather one": ([104] * 4, [312] * 4),
    "ragged": ([8 * n for n in RAGGED_BYTES], [8 * (sum(RAGGED_BYTES) - n) for n in RAGGED_BYTES]),
    "nothing ragged": ([32] * 4, [96] * 4),
    "transpose": ([3 * 96] * 4, [3 * 96] * 4),
    "transpose bytes": ([3 * 40] * 4, [3 * 40] * 4),
}


@each("layout", LAYOUTS)
@each("case", BITS)
def test_metered_bits_are_those_counted_by_hand(outcomes: Outcomes, layout: str, case: str) -> None:
    processes = seen(outcomes, layout, case)
    sent = [bits for outcome in processes for bits in outcome.sent_bits]
    received = [bits for outcome in processes for bits in outcome.received_bits]
    assert (sent, received) == BITS[case]


# The wire bits: in a ring, each worker passes on 2 x 3/4 of what is summed, and all gathered
# messages except one.
WIRE = {
    "mean torch.float32": [1.5 * 608] * 4,
    "bitwise_and torch.int32": [1.5 * 608] * 4,
    "gather": [3 * 568] * 4,
    "ragged": [3 * 8 * n for n in RAGGED_BYTES],
    "transpose": [3 * 96] * 4,
}


@each("layout", LAYOUTS)
@each("case", WIRE)
def test_wire_bits_are_those_counted_by_hand(outcomes: Outcomes, layout: str, case: str) -> None:
    assert [bits for outcome in seen(outcomes, layout, case) for bits in outcome.wire_bits] == WIRE[
        case
    ]


def test_metered_bits_are_equal_in_all_layouts(outcomes: Outcomes) -> None:
    for case in outcomes["1x4"][0]:
        by_layout = []
        for layout in LAYOUTS:
            processes = seen(outcomes, layout, case)
            by_layout.append(
                [
                    (o.sent_bits[i], o.received_bits[i], o.wire_bits[i])
                    for o in processes
                    for i in range(len(o.sent_bits))
                ]
            )
        assert by_layout[0] == by_layout[1] == by_layout[2], case


def test_tensors_are_coalesced_into_one_message(outcomes: Outcomes) -> None:
    """A ragged gather first exchanges the lengths; within one process there are no messages."""
    for case, outcome in outcomes["2x2"][0].items():
        assert outcome.messages == (2 if "ragged" in case else 1), case
        assert outcomes["1x4"][0][case].messages == 0, case


def test_collectives_leave_their_inputs_alone() -> None:
    comm, x, n = Comm(1), torch.arange(1.0, 4).view(1, 3), torch.tensor([[5, 6]])
    comm.mean([x])
    comm.sum([n])
    comm.bitwise_and([n])
    assert x.tolist() == [[1, 2, 3]] and n.tolist() == [[5, 6]]


def test_one_message_holds_one_type() -> None:
    with pytest.raises(AssertionError, match="one type"):
        Comm(2).mean([torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.float16)])


def test_sum_refuses_floats() -> None:
    with pytest.raises(AssertionError):
        Comm(2).sum([torch.zeros(2, 1)])


def test_a_process_without_others_asks_no_transport() -> None:
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=10))
    clock = CountingClock()
    comm = Comm(2, GlooTransport(group), clock)
    message = torch.tensor([[1, 2], [3, 4]])
    assert comm.sum([message])[0].tolist() == [[4, 6]]
    assert comm.gather([message])[0].tolist() == [[1, 2], [3, 4]]
    assert comm.transpose([message])[0].tolist() == [[1, 3], [2, 4]]
    assert clock.exchanges == 0
