"""How many kernels a step launches on a GPU, counted on fake tensors."""

from __future__ import annotations

import pytest
from lib.gpu_steps import observe_step
from method_cases import compressor_of

# A layer of each of 16 sizes, so that few tensors have the same shape, and 16 equal blocks. Bounds
# are close enough to see a launch more for each of them.
SHAPES = {
    **{f"vector{i}": (100 + 7 * i,) for i in range(16)},
    **{f"matrix{i}": (64, 64) for i in range(16)},
}
# But for top_k and powersgd, each of 16 workers' messages is added by a launch of its own.
MOST = {
    "top_k": 32,
    "ef21": 40,
    "random_k": 55,
    "random_block": 25,
    "sparseloco": 125,
    "signum": 34,
    "powersgd": 28,
    "dion": 82,
}


@pytest.mark.parametrize("choice", MOST)
def test_launches_do_not_grow_with_the_number_of_tensors(choice: str) -> None:
    step = observe_step(compressor_of(choice, "as it is"), SHAPES)
    assert step.launches <= MOST[choice], step.operations.most_common(12)
