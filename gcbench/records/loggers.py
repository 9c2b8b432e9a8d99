"""Weights & Biases, as far as it works: its errors are logged once and never end a run."""

from __future__ import annotations

import logging
import netrc
import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from gcbench.records.schema import Result

log = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",  # the terminal belongs to the progress bar
    "disable_git": True,  # result.json has the commit
    "x_disable_stats": True,  # sampling the machine would take time from what is timed
    "init_timeout": 30,
    "x_service_wait": 30,
    "finish_timeout": 15,  # within what a worker that was asked to stop has left
    "finish_timeout_raises": True,
}


class Logger(Protocol):
    """The destination of a run's metrics besides its files."""

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Log a line of metrics.jsonl, with its `event`."""

    def finish(self, result: Result) -> None: ...


class NoLogger:
    def log(self, metrics: dict[str, Any], step: int) -> None:
        pass

    def finish(self, result: Result) -> None:
        pass


class WandbLogger:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, metrics: dict[str, Any], step: int) -> None:
        if self._run is None:
            return
        try:
            self._run.log(_prefix_event(metrics), step=step)
        except Exception as error:
            self._run = None
            _warn(error)

    def finish(self, result: Result) -> None:
        if self._run is None:
            return
        try:
            self._run.summary.update(result.model_dump())
            self._run.finish(exit_code=0 if result.status == "done" else 1)
        except Exception as error:
            _warn(error)


def _prefix_event(line: dict[str, Any]) -> dict[str, Any]:
    """Return the line with its event in the keys, as train/loss, except those that may be axes."""
    axes = ("step", "epoch", "bits_sent_per_worker", "seconds")
    return {k if k in axes else f"{line['event']}/{k}": v for k, v in line.items() if k != "event"}


def start_logger(
    settings: dict[str, Any],
    *,
    name: str,
    group: str | None,
    tags: list[str],
    config: dict[str, Any],
    directory: Path,
) -> Logger:
    """Return a logger for `settings`: `mode` (one of MODES), `project` and `entity`."""
    mode = _choose_mode(settings["mode"])
    if mode == "disabled":
        return NoLogger()
    try:
        import wandb  # logger.mode=disabled works without it

        quiet = wandb.Settings(**SETTINGS)
        wandb.setup(quiet)  # it prints before init has read its settings
        run = wandb.init(
            project=settings["project"],
            entity=settings["entity"],
            name=name,
            group=group,
            tags=tags,
            config=config,
            dir=directory,
            mode=mode,
            settings=quiet,
        )
    except Exception as error:
        _warn(error)
        return NoLogger()
    return WandbLogger(run)


def _choose_mode(mode: str) -> Any:
    """Return the mode of W&B, offline where it has no key: it would stop and ask for one."""
    if mode not in MODES:
        raise ValueError(
            f"logger.mode={mode} is not known; type logger.mode= one of {', '.join(MODES)}"
        )
    if mode == "online" and not _key_is_configured():
        log.warning(
            "logger.mode=online, but no W&B API key is configured: logging offline; "
            "type `wandb login` first"
        )
        return "offline"
    if mode == "auto":
        return "online" if _key_is_configured() else "offline"
    return mode


def _key_is_configured() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    base_url = os.environ.get("WANDB_BASE_URL")
    hosts = (urlsplit(base_url).netloc,) if base_url else HOSTS
    try:
        entries = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(entries.authenticators(host) for host in hosts)


def _warn(error: Exception) -> None:
    gist = str(error).partition("\n")[0]
    log.warning(
        "W&B does not work here, the run goes on without it: %s: %s", type(error).__name__, gist
    )
