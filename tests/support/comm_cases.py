"""Every collective, with inputs that depend on the worker only, to be run in any layout."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from gloo_pool import Process
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Meter
from gcbench.core.comm.nodes import Nodes
from gcbench.core.comm.transport import GlooTransport, NcclTransport, group_beside
from gcbench.runner.network import Link

WORKERS = 4


class Outcome(NamedTuple):
    results: list[Tensor]
    sent_bits: list[int]  # one number per row of the process
    received_bits: list[int]
    wire_bits: list[float]
    messages: int  # exchanges that the clock was asked to time


def values(
    workers: range, shape: tuple[int, ...], dtype: torch.dtype, low: int = 0, high: int = 60
) -> Tensor:
    """Return values `[w, *shape]`, each row from its own generator."""
    rows = []
    for worker in workers:
        generator = torch.Generator().manual_seed(100 + worker)
        if dtype.is_floating_point:
            rows.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            rows.append(torch.randint(low, high, shape, generator=generator).to(dtype))
    return torch.stack(rows)


REDUCED = {  # reduction and type: range of the integers, chosen so that no sum of four overflows
    ("mean", torch.float32): (0, 0),
    ("mean", torch.float16): (0, 0),
    ("mean", torch.bfloat16): (0, 0),
    ("sum", torch.int8): (-31, 32),
    ("sum", torch.uint8): (0, 64),
    ("sum", torch.int32): (-(2**29), 2**29),
    ("sum", torch.int64): (-(2**61), 2**61),
    ("max", torch.float32): (0, 0),
    ("max", torch.uint8): (0, 256),
    ("max", torch.int32): (-60, 60),
    ("min", torch.float32): (0, 0),
    ("min", torch.uint8): (0, 256),
    ("min", torch.int64): (-(2**62), 2**62),
    ("bitwise_and", torch.uint8): (0, 256),
    ("bitwise_and", torch.int32): (-(2**31), 2**31),
}


def reduced_inputs(dtype: torch.dtype, low: int, high: int, workers: range) -> list[Tensor]:
    """Return rows of 5 + 6 + 7 + 1 = 19 values in four tensors."""
    return [values(workers, shape, dtype, low, high) for shape in [(5,), (2, 3), (7,), ()]]


def mixed_inputs(workers: range) -> list[Tensor]:
    """Return rows of 5 + 24 + 24 + 14 + 4 = 71 bytes, so that nothing is aligned."""
    return [
        values(workers, (5,), torch.uint8),
        values(workers, (2, 3), torch.float32),
        values(workers, (3,), torch.int64),
        values(workers, (1, 2, 7), torch.uint8),
        values(workers, (), torch.float32),
    ]


RAGGED_LENGTHS = [[0, 9, 4, 1], [6, 0, 3, 0]]  # of the two ragged tensors, by worker


def ragged_inputs(
    workers: range, lengths: list[list[int]]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return two ragged tensors and a two-dimensional one that is not ragged, and the lengths."""
    tensors = [
        values(workers, (9,), torch.uint8),
        values(workers, (6,), torch.float32),
        values(workers, (2, 1), torch.int64),
    ]
    return tensors, [*(torch.tensor([n[k] for k in workers]) for n in lengths), None]


def all_ragged_inputs(workers: range) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return a ragged tensor without any values, and its lengths."""
    return [values(workers, (4,), torch.float32)], [torch.zeros(len(workers), dtype=torch.int64)]


def nan_inputs(workers: range) -> Tensor:
    """Return rows whose k-th value is NaN, of either sign, for worker k only.

    Each row ends with extreme values.
    """
    rows = values(workers, (WORKERS + 3,), torch.float32)
    for row, worker in zip(rows, workers, strict=True):
        row[worker] = torch.nan if worker % 2 else -torch.nan
        row[WORKERS:] = (
            torch.tensor([torch.inf, -torch.inf, -0.0])
            if worker == 1
            else torch.tensor([3e38, -3e38, 0.0])
        )
    return rows


def transposed_inputs(workers: range) -> Tensor:
    return values(workers, (WORKERS, 3), torch.float32)


def cases(comm: Comm) -> dict[str, Callable[[], list[Tensor]]]:
    workers = comm.local
    calls: dict[str, Callable[[], list[Tensor]]] = {}
    for (verb, dtype), (low, high) in REDUCED.items():
        inputs = reduced_inputs(dtype, low, high, workers)
        calls[f"{verb} {dtype}"] = lambda verb=verb, inputs=inputs: getattr(comm, verb)(inputs)
    large = torch.full((len(workers), 3), 6e4, dtype=torch.float16)
    calls["mean of large halves"] = lambda: comm.mean([large])
    nans = nan_inputs(workers)
    # NaNs are compared as bits, since no NaN is equal to another.
    calls["max of nan"] = lambda: [comm.max([nans])[0].view(torch.int32)]
    calls["min of nan"] = lambda: [comm.min([nans])[0].view(torch.int32)]
    calls["gather"] = lambda: comm.gather(mixed_inputs(workers))
    calls["gather one"] = lambda: comm.gather([values(workers, (13,), torch.uint8)])
    calls["gather empty"] = lambda: comm.gather(
        [torch.zeros(len(workers), 0, dtype=t) for t in (torch.uint8, torch.float32)]
    )
    calls["ragged"] = lambda: comm.gather(*ragged_inputs(workers, RAGGED_LENGTHS))
    calls["nothing ragged"] = lambda: comm.gather(*all_ragged_inputs(workers))
    calls["transpose"] = lambda: comm.transpose([transposed_inputs(workers)])
    calls["transpose bytes"] = lambda: comm.transpose([values(workers, (WORKERS, 5), torch.uint8)])
    return calls


class CountingClock:
    def __init__(self) -> None:
        self.exchanges = 0

    def exchange(self) -> AbstractContextManager[Any]:
        self.exchanges += 1
        return nullcontext()


def outcomes(comm: Comm) -> dict[str, Outcome]:
    clock = CountingClock()
    comm.clock = clock
    by_case = {}
    for name, case in cases(comm).items():
        exchanges, comm.meter = clock.exchanges, Meter.of_workers(len(comm.local))
        results = [x.clone() for x in case()]
        by_case[name] = Outcome(
            results,
            comm.meter.sent_bits,
            comm.meter.received_bits,
            comm.meter.wire_bits,
            clock.exchanges - exchanges,
        )
    return by_case


def node_outcomes(comm: Comm) -> dict[int, dict[str, Any]]:
    """Return, by node size, a mean of 5 floats and messages of 11 + 12 bytes per node."""
    by_size = {}
    for size in (n for n in (1, 2, 4) if n < comm.workers):
        comm.meter, comm.clock = Meter.of_workers(len(comm.local)), CountingClock()
        nodes = Nodes.of(comm, size)
        by_size[size] = {
            "local": nodes.local,
            "mean": nodes.mean([values(comm.local, (5,), torch.float32)])[0],
            "gather": nodes.gather(
                [values(nodes.local, (11,), torch.uint8), values(nodes.local, (3,), torch.float32)]
            ),
            "totals_by_worker": comm.meter.totals_by_worker,
            "exchanges": comm.clock.exchanges,
        }
    return by_size


def node_outcomes_over_gloo(process: Process, workers: int) -> dict[int, dict[str, Any]]:
    return node_outcomes(process.comm(workers))


def node_outcomes_in_one_process(workers: int) -> dict[int, dict[str, Any]]:
    return node_outcomes(Comm(workers))


def over_gloo(process: Process) -> dict[str, Outcome]:
    return outcomes(process.comm(WORKERS))


def over_torchs_own(process: Process) -> dict[str, Outcome]:
    """Return the outcomes of NcclTransport over gloo, which supports the same calls."""
    return outcomes(Comm(WORKERS, NcclTransport(process.world)))


def nodes_over_torchs_own(process: Process, workers: int) -> dict[int, dict[str, Any]]:
    return node_outcomes(Comm(workers, NcclTransport(process.world)))


def over_emulated(process: Process, link: Link) -> dict[str, Outcome]:
    return outcomes(process.comm(WORKERS, link))


def emulated_spans(process: Process, link: Link) -> dict[str, tuple[float, float]]:
    """Return start and end of exchanges of 100,000 bytes that the last process joins late."""
    comm, rank = process.comm(WORKERS, link), process.rank
    (inside,), _ = comm.split(2)
    message = torch.ones(1, 100_000, dtype=torch.uint8)
    cases: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.sum([message]),
        "all_gather": lambda: comm.gather([message]),
        "all_to_all": lambda: comm.transpose([message.view(1, WORKERS, -1)]),
        "ragged": lambda: comm.gather([message], [torch.tensor([25_000 * rank])]),
        "inside": lambda: inside.sum([message]),
    }
    spans = {}
    for name, case in cases.items():
        process.control.barrier()
        time.sleep(0.05 if rank == WORKERS - 1 else 0)
        start = time.perf_counter()
        case()
        spans[name] = (start, time.perf_counter())
    return spans


def in_one_process() -> dict[str, Outcome]:
    return outcomes(Comm(WORKERS))


def agreements(process: Process) -> dict[str, Any]:
    """Return what one rank receives through `control`, beside the gradients."""
    control, rank = process.control, process.rank
    comm = process.comm(WORKERS)
    seen: dict[str, Any] = {"gather": control.gather({"rank": rank, "text": "x" * rank})}

    numbers = torch.tensor([rank + 1.0, 10.0 * rank], dtype=torch.float64)
    seen["sum"] = control.sum(numbers)
    seen["summands"] = numbers

    weights = torch.full((2, 3), float(rank + 7))
    transposed = torch.arange(6.0).view(2, 3).T * (rank + 1)  # not contiguous
    counts = torch.tensor([rank + 5])
    control.broadcast([weights, transposed, counts])
    seen["broadcast"] = [weights, transposed, counts]

    seen["agreed"] = []
    for urgencies in ([0, 0, 0, 0], [0, 2, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]):
        control.propose(urgencies[rank])
        comm.mean([torch.ones(len(comm.local), 4)])  # gradients travel meanwhile
        seen["agreed"].append(control.agree())
    control.barrier()
    seen["metered"] = comm.meter.sent_bits[0]
    return seen


def timeouts_of_nodes(process: Process, seconds: float) -> set[float]:
    """Return the timeouts of the groups that four processes split into, in nodes of two."""
    group = group_beside(process.world, timeout=timedelta(seconds=seconds))
    parts = GlooTransport(group).split(2)
    process.control.barrier()  # leaving early closes connections that others still open
    backends = [part.group._get_backend(torch.device("cpu")) for part in parts]
    return {backend.options._timeout.total_seconds() for backend in backends}
