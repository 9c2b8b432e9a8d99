"""Compose, check and start runs in this process, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gcbench.core.conf import Config
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.launch.start import start
from gcbench.runner.records.files import RunFiles
from gcbench.runner.settings.config import RunConfig

SMALL = ("trainer.threads=1", "trainer.batch_size=16", "trainer.epochs=1", "logger.mode=disabled")


def compose(*overrides: str) -> DictConfig:
    return compose_overrides(overrides)


def config_of(*overrides: str) -> RunConfig:
    return resolve(compose(*overrides))


def values_of(*overrides: str) -> Config:
    """Return the plain values of a configuration, as a result keeps them."""
    return config_of(*overrides).as_dict()


def run(directory: Path, *overrides: str, in_sweep: bool = False) -> dict[str, Any]:
    """Return the result.json of a run in `directory`, small unless overrides make it larger."""
    narrow = [] if any(o.startswith("model") for o in overrides) else ["model.widths=[16]"]
    logs = any(o.startswith("logger=") for o in overrides)
    small = [o for o in SMALL if not (logs and o.startswith("logger."))]
    start(config_of(*small, *narrow, *overrides), str(directory), in_sweep)
    result = RunFiles(directory).read_result()
    assert result is not None
    return result.model_dump()


def untimed_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without times, which only real workers have."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
