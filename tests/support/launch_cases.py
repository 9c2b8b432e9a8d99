"""Processes that were started with different arguments."""

from __future__ import annotations

from typing import Any

from gloo_pool import Process

from gcbench.config import ConfigError
from gcbench.launch.same_config import refuse_different_configs


def compare(process: Process, configs: list[dict[str, Any]]) -> str | None:
    try:
        refuse_different_configs(configs[process.rank], process.control)
    except ConfigError as error:
        return str(error)
    return None
