"""A user's loop beside the runner's, in two processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gloo_pool import pool
from library_cases import STEPS, train_like_runner
from pipeline_cases import train_steps
from sentence import SMALL, config_of

PLAIN_SGD = (
    *"model.widths=[64] trainer.workers=2 schedule=constant optimizer.lr=0.1".split(),
    *"optimizer.momentum=0 optimizer.nesterov=false optimizer.weight_decay=0".split(),
)


def compare_with_runner(
    choice: str, knobs: Mapping[str, Any], bucket_mib: float, overlap: bool = False
) -> None:
    """Check that `compress` gives the runner's weights and bits to the bit."""
    # In a run these two have no short key, as they follow the optimizer.
    coded = {"momentum", "dense_steps"} if "momentum" in knobs else set()
    typed = {f"compressor.{key}" if key in coded else key: value for key, value in knobs.items()}
    overrides = [f"{key}={value}".replace(" ", "") for key, value in typed.items()]
    config = config_of(*SMALL, *PLAIN_SGD, f"compressor={choice}", *overrides)
    if overlap:
        trainer = config.trainer.model_copy(update={"overlap": True, "bucket_mib": bucket_mib})
        config, knobs = config.model_copy(update={"trainer": trainer}), {**knobs, "overlap": True}
    in_loops = pool(2).run(train_like_runner, config, knobs, bucket_mib)
    in_runner = pool(2).run(train_steps, config, STEPS)
    for (weights, bits), run in zip(in_loops, in_runner, strict=True):
        assert all(map(torch.equal, weights, run.parameters[-1]))
        assert [bits] == run.sent_bits
