"""What methods send is what gcbench/core/codecs/README.md says, read by a decoder of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import wire_format
from nightly import slow_but
from sentence import compose
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import Transport
from gcbench.core.compressor import State, Step, offsets_of, sizes_of
from gcbench.runner.config.keys import method_keys
from gcbench.runner.config.resolve import resolve
from gcbench.runner.launch.instantiate import make_compressor

# With short buckets, tensors shorter than one, and codes that share bytes across tensors.
SIZES = (7, 700, 2048, 5000, 1, 20_001, 512)
LARGE = (900, 2**18 + 70_000, 3)


class Recorder:
    """A transport to a process that sends what this one sends, which keeps the last message."""

    rank = 0
    processes = 2

    def __init__(self) -> None:
        self.sent = b""

    def all_reduce(self, flat: Tensor, op: str) -> None:
        raise AssertionError("gathers only")

    def all_gather(self, message: Tensor) -> Tensor:
        self.sent = bytes(message[0].tolist())
        return message.expand(2, -1)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        raise AssertionError("gathers only")

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        self.sent = bytes(rows[0].tolist())
        return rows * 2

    def split(self, size: int) -> tuple[Transport, Transport]:
        raise AssertionError("gathers only")


def level(code: int, sent: list[float]) -> float:
    return sent[code]


def sign(code: int, sent: list[float]) -> float:
    return sent[0] if code else -sent[0]


Sizes = tuple[int, ...]
Reader = Callable[[bytes, Sizes], list[float]]


def buckets(size: int | None, base: int, count: int, value: wire_format.Value) -> Reader:
    return lambda data, sizes: wire_format.read_buckets(data, sizes, size, base, count, value)


def elias(bucket: int, sparse: bool) -> Reader:
    return lambda data, sizes: wire_format.read_elias(data, sizes, bucket, 7, sparse)


def top_k(fraction: float, packed: bool) -> Reader:
    return lambda data, sizes: wire_format.read_top_k(data, sizes, fraction, packed)


grid = wire_format.on_grid
CASES: dict[str, tuple[Sizes, Reader]] = {
    "qsgd bits=4": (SIZES, buckets(512, 16, 1, grid(14))),
    "qsgd bits=3 bucket_size=100": (SIZES, buckets(100, 8, 1, grid(6))),
    "qsgd bits=8 bucket_size=2048": (SIZES, buckets(2048, 256, 1, grid(254))),
    "qsgd bits=2": (LARGE, buckets(512, 4, 1, grid(2))),
    "terngrad": (SIZES, buckets(2048, 3, 1, grid(2))),
    "terngrad per_layer=true": (LARGE, buckets(None, 3, 1, grid(2))),
    "qsgd_levels level_count=17": (SIZES, buckets(2048, 17, 1, grid(16))),
    "orq level_count=3": (SIZES, buckets(2048, 3, 3, level)),
    "orq level_count=9 bucket_size=64": (SIZES, buckets(64, 9, 9, level)),
    "linear level_count=5": (SIZES, buckets(2048, 5, 5, level)),
    "bingrad_pb": (SIZES, buckets(2048, 2, 1, grid(1))),
    "bingrad_b": (SIZES, buckets(2048, 2, 2, level)),
    "scaled_sign": (SIZES, buckets(2048, 2, 1, sign)),
    "sign_norm": (LARGE, buckets(None, 2, 1, sign)),
    "onebit bucket_size=1000": (SIZES, buckets(1000, 2, 2, level)),
    "natural": (SIZES, lambda data, sizes: wire_format.read_natural(data, sum(sizes))),
    "top_k fraction=0.01": (SIZES, top_k(0.01, packed=False)),
    "top_k fraction=0.01 index=auto": (SIZES, top_k(0.01, packed=True)),
    "top_k fraction=0.2 index=auto": (SIZES, top_k(0.2, packed=True)),
    "qsgd code=elias_dense": (SIZES, elias(512, sparse=False)),
    "qsgd code=elias_sparse bucket_size=5000": (SIZES, elias(5000, sparse=True)),
}
FAST = [
    "qsgd bits=4",
    "qsgd bits=2",
    "terngrad",
    "orq level_count=9 bucket_size=64",
    "scaled_sign",
    "natural",
    "top_k fraction=0.01 index=auto",
    "qsgd code=elias_dense",
    "qsgd code=elias_sparse bucket_size=5000",
]


@pytest.mark.parametrize("case", slow_but(FAST, list(CASES)))
def test_every_value_is_read_from_the_bytes(case: str) -> None:
    name, *knobs = case.split()
    sizes, read = CASES[case]
    off = {"error_feedback": "false", "min_size": "0"}
    plain = [f"{key}={value}" for key, value in off.items() if key in method_keys()[name]]
    made = resolve(compose(f"compressor={name}", *knobs, *plain))
    compressor, recorder = make_compressor(made.compressor, quiet=True), Recorder()
    generator = torch.Generator().manual_seed(1)
    grads = {str(i): torch.randn(1, n, generator=generator) for i, n in enumerate(sizes)}
    comm = Comm(2, recorder)
    step = Step(0, 1, comm.local, offsets_of(sizes_of(grads)))
    update = compressor.aggregate(grads, State(), comm, step).update
    values = torch.tensor(read(recorder.sent, sizes))
    # Adding 0.0 turns -0 into 0, as in sums over workers.
    assert torch.equal(values + 0.0, torch.cat(list(update.values()), dim=1)[0])
