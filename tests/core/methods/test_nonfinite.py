"""A NaN or an infinity of one worker shows in the update, or in that worker's residual."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from backends import use
from gloo_pool import pool
from method_cases import DIFFERENT, FEW, compressor_of
from nightly import loop_over
from nonfinite_cases import SOME_VALUES, Seen, step_effects, step_effects_over_gloo

from gcbench.core.codecs.kernels import Backend
from gcbench.core.comm.collectives import Comm
from gcbench.runner.check.steps import WORKERS

VALUES = [float("nan"), float("inf"), float("-inf")]
IN_CPP = {("onebit", "as it is"), ("scaled_sign", "all tensors"), ("powersgd", "error feedback")}
FAST = [*((*key, "eager") for key in FEW), *((*key, "native") for key in IN_CPP)]


def shows(choice: str, seen: Seen, worker: int) -> bool:
    """Return whether the value shows; the signs of a vote cannot be NaN, but a residual can."""
    return (
        worker in seen.residuals if choice == "signum" else seen.update or worker in seen.residuals
    )


@loop_over(FAST, [(*key, backend) for backend in ("eager", "native") for key in DIFFERENT])
def test_virtual_workers_never_swallow_it(choice: str, variant: str, backend: Backend) -> None:
    compressor = compressor_of(choice, variant)
    with contextmanager(use)(backend):
        for value in VALUES:
            for worker in (0, WORKERS - 1):
                seen = step_effects(compressor, Comm(WORKERS), value, worker, choice in SOME_VALUES)
                assert shows(choice, seen, worker), f"{value} of worker {worker}: {seen}"


@pytest.mark.parametrize(
    ("worker", "keys"),
    [
        pytest.param(WORKERS - 1, FEW, id="last-few"),
        *(
            pytest.param(worker, DIFFERENT, id=f"{worker}-all", marks=pytest.mark.slow)
            for worker in (0, WORKERS - 1)
        ),
    ],
)
def test_real_workers_never_swallow_it(worker: int, keys: list[tuple[str, str]]) -> None:
    """gloo's reductions lose a NaN of any worker except the first."""
    compressors = {key: compressor_of(*key) for key in keys}
    processes = pool(WORKERS).run(step_effects_over_gloo, compressors, float("nan"), worker)
    for key in compressors:
        updates = {process[key].update for process in processes}
        assert len(updates) == 1, f"{key}: some replicas have a finite update and some have not"
        residuals = [k for process in processes for k in process[key].residuals]
        assert shows(key[0], Seen(updates.pop(), residuals), worker), key
