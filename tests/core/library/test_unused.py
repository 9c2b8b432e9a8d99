"""gcbench.compress where DDP drops the updates of parameters that no worker used."""

from __future__ import annotations

import pytest
import torch
from gloo_pool import pool
from method_cases import CHOICES
from nightly import slow_but
from unused_cases import KEEPS_ALL, WAYS, leave_out

from gcbench.runner.config.keys import method_keys


def test_what_ddp_drops_goes_back_into_the_residual() -> None:
    for ways in WAYS:
        everyone = pool(2).run(leave_out, KEEPS_ALL, ways)
        for name in KEEPS_ALL:
            seen = [worker[name] for worker in everyone]
            assert not any(worker.wrong for worker in seen), (name, ways)
            for key, applied in seen[0].applied.items():
                assert torch.equal(applied, seen[1].applied[key])
                zero = torch.zeros_like(applied)  # in place of a residual of what is sent whole
                residual, right = (
                    sum(getattr(worker, part).get(key, zero) for worker in seen) / 2
                    for part in ("residual", "gradients")
                )
                torch.testing.assert_close(applied + residual, right, msg=f"{name} {key} {ways}")


@pytest.mark.parametrize("name", slow_but(("acpsgd", "ef21", "signum", "dion", "loco"), CHOICES))
def test_the_state_of_a_parameter_waits_until_it_is_used(name: str) -> None:
    knobs = {"min_size": 0} if "min_size" in method_keys()[name] else {}
    knobs |= {"momentum": 0.9, "dense_steps": 1} if "adam" in name else {}
    knobs |= {"exchange": "scatter"} if name == "ef21_muon" else {}  # its own is refused
    for seen in pool(2).run(leave_out, {name: knobs}, WAYS[1]):
        assert not seen[name].wrong
