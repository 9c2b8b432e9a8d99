"""Steps without a run."""

from __future__ import annotations

import torch
from method_cases import build_method

from gcbench.comm import Comm
from gcbench.compressors.virtual import Stepper


def test_a_stepper_begins_behind_the_warm_up() -> None:
    """What a benchmark times is the method, not the whole gradients before it."""
    comm = Comm(1)
    stepper = Stepper(build_method("scaled_sign", dense_steps=9), {"w": torch.ones(1, 640)}, comm)
    stepper.step()
    assert 640 <= comm.meter.sent_bits[0] < 2 * 640
