"""DeMo against a direct implementation of its algorithm and of the cosine transform."""

from __future__ import annotations

import math

import torch
from method_cases import aggregate, build_method, gradients
from nightly import each
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.methods.demo import DeMo, _cosines, _divisor


def cosine_transform(block: Tensor) -> Tensor:
    """Return the orthonormal DCT-II of a block, from its definition."""

    def along(x: Tensor) -> Tensor:
        n = x.shape[0]
        rows = []
        for k in range(n):
            waves = [math.cos(math.pi / n * (i + 0.5) * k) for i in range(n)]
            scale = math.sqrt((1 if k == 0 else 2) / n)
            rows.append(scale * (torch.tensor(waves, dtype=torch.float64) @ x))
        return torch.stack(rows)

    return along(along(block.double()).mT).mT


@each(("n", "m"), [(1, 1), (8, 1), (6, 10), (64, 64)])
def test_the_transform_is_orthonormal_and_that_of_its_definition(n: int, m: int) -> None:
    block = torch.randn(n, m, generator=torch.Generator().manual_seed(0))
    device = torch.device("cpu")
    ours = _cosines(n, device) @ block @ _cosines(m, device).mT
    torch.testing.assert_close(ours, cosine_transform(block).float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(_cosines(n, device) @ _cosines(n, device).mT, torch.eye(n))


def test_sides_of_blocks_divide_those_of_the_matrix() -> None:
    assert [_divisor(n, 64) for n in (1, 40, 64, 67, 128, 300, 1000)] == [1, 40, 64, 1, 64, 60, 50]


def strongest(m: Tensor, k: int, height: int, width: int) -> Tensor:
    """Return a matrix rebuilt from the k strongest frequencies of each of its blocks."""
    # The inverse of an orthonormal transform is its transpose.
    down, across = (cosine_transform_matrix(n).mT for n in (height, width))
    out = torch.zeros_like(m, dtype=torch.float64)
    for i in range(0, m.shape[0], height):
        for j in range(0, m.shape[1], width):
            c = cosine_transform(m[i : i + height, j : j + width])
            largest = c.flatten().abs().topk(min(k, c.numel())).indices
            kept = torch.zeros(c.numel(), dtype=torch.float64)
            kept[largest] = c.flatten()[largest]
            out[i : i + height, j : j + width] = down @ kept.view_as(c) @ across.mT
    return out


def cosine_transform_matrix(n: int) -> Tensor:
    units = torch.eye(n, dtype=torch.float64)
    return torch.cat([cosine_transform(unit.unsqueeze(1)) for unit in units], dim=1)


def test_updates_and_momenta_are_those_of_the_algorithm() -> None:
    """m <- beta m + g; m <- m - q; the update is the sign of the sum of all q."""
    compressor = build_method("demo", coefficients=3, chunk_side=5, momentum=0.9)
    state, shape = State(), (10, 13)
    m = torch.zeros(4, *shape, dtype=torch.float64)
    for number in range(4):
        grads = {"matrix": gradients(range(4), number)["matrix"]}
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        m = 0.9 * m + grads["matrix"]
        sent = torch.stack([strongest(row, 3, 5, 1) for row in m])
        m -= sent
        torch.testing.assert_close(out.sent()["matrix"], sent.float(), rtol=1e-4, atol=1e-5)
        kept = state.per_worker["matrix"].view(4, 2, 13, 5).double()  # coefficients by block
        restored = (kept @ cosine_transform_matrix(5)).view(4, 2, 13, 5).mT.reshape(m.shape)
        torch.testing.assert_close(restored, m, rtol=1e-4, atol=1e-5)
        total = sent.sum(0)
        clear = total.abs() > 1e-4  # elsewhere rounding decides the sign
        assert torch.equal(out.update["matrix"][0][clear], total[clear].sign().float())
        assert set(out.update["matrix"].unique().tolist()) <= {-1.0, 0.0, 1.0}


def test_a_block_costs_its_coefficients_and_positions() -> None:
    """Each of four blocks of 64 x 64 sends 32 floats and 32 positions of 12 bits."""
    comm = Comm(2)
    aggregate(DeMo(32, 0.999), {"w": torch.randn(2, 128, 128)}, comm=comm)
    assert comm.meter.sent_bits == [4 * 32 * (32 + 12)] * 2


def test_all_frequencies_leave_no_momentum() -> None:
    out = aggregate(DeMo(64 * 64, 0.9), gradients(range(3), 0))
    assert all(x.abs().max() < 1e-6 for x in out.state.per_worker.values())
    for name, g in gradients(range(3), 0).items():
        clear = g.sum(0).abs() > 1e-5
        assert torch.equal(out.update[name][0][clear], g.sum(0)[clear].sign())
