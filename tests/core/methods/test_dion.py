"""Dion against a direct implementation of its algorithm."""

from __future__ import annotations

import torch
from method_cases import aggregate, build_method, gradients
from nightly import each
from torch import Tensor, nn

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.methods.dion import Dion
from gcbench.core.wrappers.build import build
from gcbench.runner.train.optimizers import DionOptimizer

RANK, MU = 3, 0.9


def dion_step(b: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what remains of B `[w, n, m]`, the new Q and the update, in double precision."""
    p, _ = torch.linalg.qr((b @ q).mean(0))
    r = (b.mT @ p).mean(0)
    q = r / r.norm(dim=0)
    n, m = b.shape[1:]
    return b - (1 - MU) * p @ r.mT, q, (n / m) ** 0.5 * p @ q.mT


@each("shape", [(10, 13), (13, 10), (6, 5, 3, 3)])
def test_updates_and_momenta_are_those_of_the_algorithm(shape: tuple[int, ...]) -> None:
    compressor, state = build_method("dion", rank=RANK, momentum=MU), State()
    n, m = shape[0], torch.Size(shape[1:]).numel()
    momenta, q = torch.zeros(4, n, m, dtype=torch.float64), torch.zeros(0)
    for number in range(6):
        generator = torch.Generator().manual_seed(number)
        grads = {"w": torch.randn(4, *shape, generator=generator)}
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        if number:
            b = momenta + grads["w"].view(4, n, m)
            momenta, q, update = dion_step(b, q)
            torch.testing.assert_close(
                out.update["w"].view(n, m), update.float(), rtol=1e-4, atol=1e-4
            )
            kept = state.per_worker["w"].view(4, n, m)
            torch.testing.assert_close(kept, momenta.float(), rtol=1e-4, atol=1e-4)
        else:  # the random first Q is not known, so start from the results of the first step
            momenta = state.per_worker["w"].view(4, n, m).double()
            r = state.shared["w"][0].mT.double()
            q = r / r.norm(dim=0)


def test_updates_of_a_constant_gradient_become_its_orthonormal_factor() -> None:
    """The singular values of the update are sqrt(n / m), whatever those of the gradient are."""
    u, v = (torch.linalg.qr(torch.randn(n, 2, dtype=torch.float64))[0] for n in (12, 7))
    gradient = u @ torch.diag(torch.tensor([5.0, 0.2], dtype=torch.float64)) @ v.mT
    grads = {"w": gradient.float().repeat(4, 1, 1)}
    compressor, state = build(Dion(2, MU)), State()
    for number in range(8):
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
    expected = (12 / 7) ** 0.5 * u @ v.mT
    torch.testing.assert_close(out.update["w"][0], expected.float(), rtol=0, atol=1e-3)


def test_directions_that_are_rounding_noise_count_as_zero() -> None:
    """A gradient of rank 2 gives an update of rank 2, though four columns may be sent."""
    generator = torch.Generator().manual_seed(0)
    compressor, state = build(Dion(4, MU)), State()
    left, right = (torch.randn(n, 2, generator=generator) for n in (12, 7))
    for number in range(5):
        weights = torch.randn(4, 2, 2, generator=generator)
        grads = {"w": left @ weights @ right.mT}
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        singular = torch.linalg.svdvals(out.update["w"][0])
        assert singular[1] > 0.1 and singular[2] < 1e-5


def test_what_was_not_sent_stays_whole() -> None:
    """M = B - (1 - mu) P R^T keeps mu of the part in the span of P, and all of the rest."""
    compressor = build(Dion(RANK, MU))
    grads = {"w": gradients(range(4), 0)["matrix"]}
    out = aggregate(compressor, grads)
    p = torch.linalg.qr(out.update["w"][0])[0][:, :RANK].double()
    b, kept = grads["w"].double(), out.state.per_worker["w"].double()
    outside = torch.eye(p.shape[0], dtype=torch.float64) - p @ p.mT
    torch.testing.assert_close(outside @ kept, outside @ b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((p.mT @ kept).mean(0), MU * (p.mT @ b).mean(0), rtol=1e-4, atol=1e-5)


def test_a_matrix_costs_its_factors() -> None:
    comm = Comm(2)
    aggregate(build(Dion(4, MU)), {"w": torch.randn(2, 128, 64)}, comm=comm)
    assert comm.meter.sent_bits == [32 * 4 * (128 + 64)] * 2


def test_scale_of_gradients_means_nothing() -> None:
    """The update is a direction, even for gradients whose squares are zero in float32."""
    grads = gradients(range(4), 0)["matrix"]
    compressor = build(Dion(RANK, MU))
    first = aggregate(compressor, {"w": grads}).update["w"]
    for factor in (2.0**-90, 2.0**40):
        other = aggregate(compressor, {"w": grads * factor}).update["w"]
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-5)


def test_the_optimizer_takes_matrices_as_they_are_and_vectors_by_lion() -> None:
    matrix, vector = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))
    x, y = matrix.detach().clone(), vector.detach().clone()
    optimizer = DionOptimizer([matrix, vector], lr=0.1, betas=[0.9, 0.8], weight_decay=0.5)
    m = torch.zeros(5)
    for _ in range(4):
        matrix.grad, vector.grad = torch.randn(3, 4), torch.randn(5)
        optimizer.step()
        x = (1 - 0.05) * x - 0.1 * matrix.grad
        y = (1 - 0.05) * y - 0.1 * (0.9 * m + 0.1 * vector.grad).sign()
        m = 0.8 * m + 0.2 * vector.grad
        torch.testing.assert_close(matrix.detach(), x)
        torch.testing.assert_close(vector.detach(), y)
