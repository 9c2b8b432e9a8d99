"""Whole training steps of DDP with communication hooks, PyTorch's and ours, on one device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from gcbench.runner.bench.timing import Row
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.control import LocalControl
from gcbench.runner.data import ArrayData, Data, TokenData
from gcbench.runner.settings.config import RunConfig
from lib.contenders import Contender, Hook, TorchSteps, powersgd_hook
from lib.turns import BASELINE, time_rows

TORCH_HOOKS: Mapping[str, Hook | None] = {
    "torch DDP": None,
    "torch fp16_compress_hook": lambda ddp: ddp.register_comm_hook(None, fp16_compress_hook),
    "torch powerSGD_hook": powersgd_hook(2),
}


def hooked_row(
    overrides: str, name: str, hook: Hook | None, rounds: int, device: torch.device
) -> list[Row]:
    """Return one row: steps with a hook, in turn with steps that exchange nothing.

    This process is in a process group, and may be the only one in it. `overrides` choose model and
    batch size; the data are drawn.
    """
    config, data, alone = _alone(overrides, device)
    steps = TorchSteps(config, data, hook, device=device)
    contenders: dict[str, Contender] = {BASELINE: alone, name: steps}
    _, row = time_rows(contenders, LocalControl(), rounds, device)
    milliseconds, x = 1e3 * row["step_seconds"], row["of_no_exchange"]
    return [{**row, "part": "step", "milliseconds": milliseconds, "x": x}]


@lru_cache(1)
def _alone(overrides: str, device: torch.device) -> tuple[RunConfig, Data, TorchSteps]:
    """Return what all steps of a model share: its drawing takes longer than they do."""
    config, _ = resolve_overrides(
        [*overrides.split(), "trainer.workers=1", "trainer.precision=bf16"]
    )
    data = _draw_data(config.model.as_dict(), config.trainer.batch_size, device)
    return config, data, TorchSteps(config, data, device=device, alone=True)


def _draw_data(model: dict[str, Any], batch_size: int, device: torch.device) -> Data:
    """Return words, or images of CIFAR's shape, for an epoch of eight batches."""
    vocabulary: Any = model.get("vocabulary")
    if vocabulary:
        words = batch_size * (8 * model["context"] + 1)
        text = torch.randint(vocabulary, (words,), device=device)
        return TokenData("drawn", vocabulary, text, text, model["context"])
    images = torch.randn(8 * batch_size, 3, 32, 32, device=device)
    pair = images, torch.randint(10, (len(images),), device=device)
    return ArrayData("drawn", "classification", 10, pair, pair)
