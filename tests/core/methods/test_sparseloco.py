"""SparseLoCo's code against a direct implementation of its steps."""

from __future__ import annotations

import torch
from method_cases import aggregate, build_method, gradients
from nightly import each
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.methods.sparseloco import SparseLoCo
from gcbench.core.wrappers.build import build


def coded(v: Tensor, k: int, size: int) -> Tensor:
    """Return the decoded values of a tensor `[n]`: k per chunk, as the means of four bins."""
    chosen = torch.zeros_like(v, dtype=torch.bool)
    for start in range(0, len(v), size):
        chunk = v[start : start + size].abs()
        take = k if len(chunk) == size else max(1, k * len(chunk) // size)
        chosen[start + chunk.topk(take).indices] = True
    values = v[chosen].double()
    width = 1.5 * values.std(correction=0)
    bins = ((values - values.mean()) / (width if width > 0 else 1)).round().clamp(-2, 1)
    for b in bins.unique():
        values[bins == b] = values[bins == b].mean()
    out = torch.zeros_like(v)
    out[chosen] = values.float()
    return out


@each(("size", "k", "n"), [(64, 4, 640), (64, 4, 1000), (4096, 64, 10_000)])
def test_the_largest_of_each_chunk_become_means_of_four_bins(size: int, k: int, n: int) -> None:
    v = torch.randn(3, n, generator=torch.Generator().manual_seed(0)) ** 3
    compressor = build(SparseLoCo(k / size, size))
    sent = aggregate(compressor, {"w": v}).sent()["w"]
    for row, expected in zip(sent, v, strict=True):
        torch.testing.assert_close(row, coded(expected, k, size), rtol=1e-5, atol=1e-6)
        assert len(row.unique()) <= 5


def test_error_feedback_forgets() -> None:
    """e <- 0.95 e + g; send C(e); e <- e - C(e)."""
    compressor = build_method("sparseloco", fraction=0.1, chunk_size=20, min_size=0)
    state, e = State(), {k: torch.zeros(4, g[0].numel()) for k, g in gradients(range(4), 0).items()}
    for number in range(5):
        grads = gradients(range(4), number)
        out = aggregate(compressor, grads, number=number, state=state)
        for name, g in grads.items():
            e[name] = 0.95 * e[name] + g.reshape(4, -1)
            sent = torch.stack([coded(row, 2, 20) for row in e[name]])
            e[name] -= sent
            update = out.update[name].flatten()
            torch.testing.assert_close(update, sent.mean(0), rtol=1e-4, atol=1e-6)
            kept = out.state.per_worker[name].reshape(4, -1)
            torch.testing.assert_close(kept, e[name], rtol=1e-4, atol=1e-6)
        state = out.state


def test_a_position_costs_twelve_bits_and_a_value_two() -> None:
    """64 of 4096 values are sent, with 14 bits each, and four means per tensor."""
    sent = [0]
    for chunks in (1, 3):
        comm = Comm(1)
        aggregate(build(SparseLoCo(1 / 64)), {"w": torch.randn(1, 4096 * chunks)}, comm=comm)
        sent.append(comm.meter.sent_bits[0] - 4 * 32)
    assert sent == [0, 64 * 14, 3 * 64 * 14]


@each("fraction", [0.01, 0.1, 1.0])
def test_means_of_bins_err_less_than_zeros_would(fraction: float) -> None:
    for tail in (1, 3, 7):
        v = torch.randn(2, 5000, generator=torch.Generator().manual_seed(tail)) ** tail
        sent = aggregate(build(SparseLoCo(fraction, 500)), {"w": v}).sent()["w"]
        chosen = sent != 0
        assert (v - sent)[chosen].square().sum() < 0.7 * v[chosen].square().sum()
