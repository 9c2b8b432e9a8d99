"""The logger to Weights & Biases, whose errors are logged once and never end a run."""

from __future__ import annotations

import logging
import netrc
import os
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gcbench.identity import format_value, label_run
from gcbench.reasons import in_one_line
from gcbench.records.metric_keys import BITS, EPOCH, EVENTS, SECONDS, prefix_event, totals
from gcbench.records.schema import Logged, Result

if TYPE_CHECKING:
    from gcbench.records.result import Begun  # it imports torch, which reports do not need

log = logging.getLogger("gcbench")

HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",  # the terminal belongs to the progress bar
    "disable_git": True,  # result.json has the commit
    "x_disable_stats": True,  # sampling the machine would take time from what is timed
    "init_timeout": 30,
    "x_service_wait": 30,
    # The service of a run that was killed drops the lines that it has not written to the run's
    # offline file yet. It writes them every 15 s by default.
    "x_transaction_log_flush_interval": 0.1,
    "finish_timeout": 15,  # less than the time that a worker has left when asked to stop
    "finish_timeout_raises": True,
}
# W&B draws a metric over one axis only, so scores have one name per axis.
SCORES_OVER = {"test_over_bits": BITS, "test_over_time": SECONDS}
LONGEST_NAME, LONGEST_TAG = 128, 64  # in characters; limits of W&B


class WandbLogger:
    """A logger to a W&B run; `run` is already started, with the axes of its metrics defined."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._step = 0  # of the row that still gets lines; 0 if it is complete
        self.logged = Logged(
            logger="wandb",
            id=run.id,
            url=run.url,
            # W&B adds a number after the id if two starts are in the same second.
            path=f"wandb/offline-run-*-{run.id}*" if run.offline else None,
        )

    def log(self, line: dict[str, Any]) -> None:
        values = prefix_event(line)
        if line["event"] == "test":
            for event, axis in SCORES_OVER.items():
                if axis in values:
                    scores = {key: v for key, v in values.items() if key.startswith("test/")}
                    values |= {key.replace("test", event, 1): v for key, v in scores.items()}
        self._log(values, line["step"])
        self._step = line["step"]

    def complete_step(self) -> None:
        """Complete the row of the last step, which W&B would keep until the next step begins."""
        if self._step:
            self._log({}, self._step, commit=True)
            self._step = 0

    def finish(self, result: Result) -> None:
        if result.status != "interrupted":
            self._log(totals(result), result.steps or 0)
        if self._run is None:
            return
        try:
            self._run.summary["result"] = result.model_dump()
            self._run.finish(exit_code=0 if result.status == "done" else 1)
        except Exception as error:
            _warn(error)

    def _log(self, values: dict[str, Any], step: int, commit: bool = False) -> None:
        if self._run is None:
            return
        try:
            self._run.log(values, step=step, commit=commit)
        except Exception as error:
            self._run = None
            _warn(error)


def _disable_analytics() -> None:
    """Turn off W&B's reports on itself, which wait forever for a service that does not start.

    wandb 0.31 reports the failure while it holds the lock that the report needs.
    """
    with suppress(ImportError, AttributeError):  # other versions do not have it
        from wandb.analytics.opentelemetry import opentelemetry_proxy

        opentelemetry_proxy.disable()


def start_wandb(config: dict[str, Any], directory: Path, begun: Begun) -> WandbLogger | None:
    """Return a logger to this run's W&B run, or None if W&B is disabled or does not work.

    A continued run continues its W&B run.
    """
    settings = config["logger"]
    mode = _choose_mode(settings["mode"])
    if mode == "disabled":
        return None
    knobs = [f"{key}={format_value(value)}" for key, value in config["knobs"].items()]
    label = label_run(config, knobs)
    tags = [*(f"{k}={v}" for k, v in config["choices"].items()), *knobs]
    seed = f" seed={config['seed']}"
    try:
        import wandb  # logger.mode=disabled works without it

        _disable_analytics()
        quiet = wandb.Settings(**SETTINGS)
        wandb.setup(quiet)  # else it prints before init has read its settings
        run = wandb.init(
            id=begun.run_id,
            resume="allow",
            project=settings["project"],
            entity=settings["entity"],
            name=shorten(label, LONGEST_NAME - len(seed), placeholder=" ...") + seed,
            group=settings["group"] or config["name"],
            tags=list(dict.fromkeys(tag[:LONGEST_TAG] for tag in settings["tags"] or tags)),
            config={
                **config,
                "label": label,
                "identity": begun.identity(config),
                "paper": (config["experiment"] or "").partition("/")[0] or None,
            },
            dir=directory,
            mode=mode,
            settings=quiet,
        )
        for axis in (EPOCH, BITS, SECONDS):
            run.define_metric(axis, hidden=True)
        for events, axis in {**dict.fromkeys(EVENTS, EPOCH), **SCORES_OVER}.items():
            run.define_metric(f"{events}/*", step_metric=axis, step_sync=False)
        return WandbLogger(run)
    except Exception as error:
        _warn(error)
        return None


def _choose_mode(mode: str) -> Any:
    """Return the mode of W&B: offline without an API key, as W&B would stop and ask for one."""
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
    log.warning("W&B does not work here, the run goes on without it: %s", in_one_line(error))
