"""Steps of a method outside of a training run."""

from __future__ import annotations

import torch
from method_cases import build_method

from gcbench.core.comm.collectives import Comm
from gcbench.core.wrappers.virtual import Stepper


def test_a_stepper_begins_behind_the_warm_up() -> None:
    """A benchmark must time the method, not the uncompressed gradients of the warm-up."""
    comm = Comm(1)
    stepper = Stepper(build_method("scaled_sign", dense_steps=9), {"w": torch.ones(1, 640)}, comm)
    stepper.step()
    assert 640 <= comm.meter.sent_bits[0] < 2 * 640
