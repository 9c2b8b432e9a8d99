"""Weights & Biases, which gets what the files get and can never end a run."""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger("gcbench")


class Logger(Protocol):
    def log(self, metrics: dict[str, Any], step: int) -> None: ...
    def finish(self, result: dict[str, Any]) -> None: ...


class Silent:
    def log(self, metrics: dict[str, Any], step: int) -> None:
        pass

    def finish(self, result: dict[str, Any]) -> None:
        pass


class Wandb:
    """After its first failure it says so once and stays silent."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._attempt(lambda run: run.log(metrics, step=step))

    def finish(self, result: dict[str, Any]) -> None:
        def close(run: Any) -> None:
            run.summary.update({k: v for k, v in result.items() if k != "config"})
            run.finish(exit_code=0 if result["status"] == "done" else 1)

        self._attempt(close)

    def _attempt(self, action: Callable[[Any], None]) -> None:
        if self._run is None:
            return
        try:
            action(self._run)
        except Exception as error:
            log.warning("W&B failed, the run goes on without it: %s", error)
            self._run = None


def start_logger(
    settings: dict[str, Any], *, name: str, group: str | None, tags: list[str], config: dict[str, Any], directory: Path
) -> Logger:
    """`settings`: mode auto | online | offline | disabled, project, entity."""
    mode = settings["mode"]
    if mode == "disabled":
        return Silent()
    try:
        import wandb

        run = wandb.init(
            project=settings["project"],
            entity=settings["entity"],
            name=name,
            group=group,
            tags=tags,
            config=config,
            dir=directory,
            mode=("online" if _has_key() else "offline") if mode == "auto" else mode,
            settings=wandb.Settings(silent=True, console="off", init_timeout=30),
        )
    except Exception as error:
        log.warning("W&B did not start, the run goes on without it: %s", error)
        return Silent()
    return Wandb(run)


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].strip("/")
    return host in hosts
