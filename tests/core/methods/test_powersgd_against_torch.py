"""PyTorch's hook and gcbench compute the same updates from the same factors and gradients."""

from __future__ import annotations

import torch_powersgd
from gloo_pool import pool
from nightly import each


@each("rank", [1, 2, 4])
def test_updates_equal_those_of_torch_without_error_feedback(rank: int) -> None:
    """This includes the warm start and batches of one shape; with rank 4, PyTorch uses its QR."""
    for process in pool(2).run(torch_powersgd.compare, rank, 4, False):
        assert all(distance < 1e-5 for distance, _, _ in process)
        assert all(norm > 0.1 for _, _, norm in process)


@each("rank", [1, 2, 4])
def test_matrices_and_their_residuals_equal_those_of_torch(rank: int) -> None:
    """They are compared with residual=aggregated, which is what the hook keeps."""
    for process in pool(2).run(torch_powersgd.compare, rank, 4, True):
        assert all(distance < 1e-5 and apart < 1e-5 for distance, apart, _ in process)
