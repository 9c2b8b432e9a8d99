"""The logger to Weights & Biases, whose errors are logged once and never end a run."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from gcbench.core.errors import in_one_line
from gcbench.core.fields import format_value
from gcbench.runner.differences import label_run
from gcbench.runner.identity import SWEPT
from gcbench.runner.records.metrics import BITS, EPOCH, EVENTS, SECONDS, prefix_event, totals
from gcbench.runner.records.schema import Logged, Result
from gcbench.runner.records.wandb_service import (
    PATIENCE_SECONDS,
    ask_service,
    asked_mode,
    is_reachable,
    leave_service,
    own_settings,
    quiet_settings,
    settled_mode,
)
from gcbench.runner.settings.config import RunConfig

if TYPE_CHECKING:
    from gcbench.runner.records.result import Begun  # it imports torch, which reports do not need

log = logging.getLogger("gcbench")

# W&B draws a metric over one axis only, so scores have one name per axis.
SCORES_OVER = {"test_over_bits": BITS, "test_over_time": SECONDS}
LONGEST_NAME, LONGEST_TAG = 128, 64  # in characters; limits of W&B


class WandbLogger:
    """A logger to a W&B run.

    Args:
        run: W&B's run, already started, with the axes of its metrics defined.
        finish_timeout: the seconds that W&B takes at most to finish it; 0: any number.
    """

    def __init__(self, run: Any, finish_timeout: float) -> None:
        self._run = run
        self._finish_seconds = max(2 * finish_timeout, PATIENCE_SECONDS) if finish_timeout else None
        self._step = 0  # of the row that still gets lines; 0 if it is complete
        self.logged = Logged(
            logger="wandb",
            id=run.id,
            url=run.url,
            path=_offline_files(run.id) if run.offline else None,
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
            ask_service(self._finish_seconds, partial(self._finish, self._run, result))
        except Exception as error:
            _warn(error)

    @staticmethod
    def _finish(run: Any, result: Result) -> None:
        run.summary["result"] = result.model_dump()
        run.finish(exit_code=0 if result.status == "done" else 1)

    def _log(self, values: dict[str, Any], step: int, commit: bool = False) -> None:
        if self._run is None:
            return
        try:
            ask_service(PATIENCE_SECONDS, partial(self._run.log, values, step=step, commit=commit))
        except Exception as error:
            self._run = None
            _warn(error)


def start_wandb(config: RunConfig, directory: Path, begun: Begun) -> WandbLogger | None:
    """Return a logger to this run's W&B run, or None if W&B is disabled or does not work.

    A continued run continues its W&B run.
    """
    asked = asked_mode(config.logger.mode)
    if asked == "disabled":  # which works without the package, too
        return None
    try:
        own = own_settings()
        mode = settled_mode(asked, own)
        if asked == "online" != mode:
            log.warning(
                "logger.mode=online, but no W&B API key is configured: logging offline; "
                "type `wandb login` first"
            )
        if mode == "disabled":
            return None
        if mode == "online" and not is_reachable(own):
            log.warning("%s cannot be reached from here: logging offline", own.base_url)
            mode = "offline"
        what = _describe(config, directory, begun, own)
        return WandbLogger(_start(mode, what, own), own.finish_timeout)
    except Exception as error:
        _warn(error)
        return None


def name_of(config: RunConfig) -> str:
    """Return the name of a run, for loggers that show many of them."""
    seed = f" seed={config.seed}"
    return shorten(_label(config), LONGEST_NAME - len(seed), placeholder=" ...") + seed


def _label(config: RunConfig) -> str:
    return label_run(config.as_dict(), _knobs(config))


def _knobs(config: RunConfig) -> list[str]:
    """Return what was typed; what a sweep varies comes first, as a legend cuts names."""
    swept = os.environ.get(SWEPT, "").split(",")
    keys = sorted(config.knobs, key=lambda key: key not in swept)
    return [f"{key}={format_value(config.knobs[key])}" for key in keys]


def _describe(config: RunConfig, directory: Path, begun: Begun, own: Any) -> dict[str, Any]:
    """Return what `wandb.init` gets. What was not typed is as in the user's settings of W&B."""
    settings = config.logger
    name = name_of(config)
    tags = [*(f"{k}={v}" for k, v in config.choices.items()), *_knobs(config)]
    return {
        "id": begun.run_id,
        "resume": own.resume or "allow",
        "project": settings.project or own.project or "gcbench",
        "entity": settings.entity or own.entity,
        "name": name if config.name else own.run_name or name,
        "group": settings.group or own.run_group or config.name,
        "tags": [
            *dict.fromkeys(tag[:LONGEST_TAG] for tag in settings.tags or own.run_tags or tags)
        ],
        "config": {
            **config.as_dict(),
            "label": _label(config),
            "identity": begun.identity(config),
            "commit": begun.git.commit,
            "paper": (config.experiment or "").partition("/")[0] or None,
        },
        "dir": os.environ.get("WANDB_DIR") or directory,
    }


def _start(mode: str, what: dict[str, Any], own: Any) -> Any:
    """Return W&B's run; it is offline where its host does not take it."""
    try:
        return ask_service(own.init_timeout + 2 * PATIENCE_SECONDS, partial(_init, mode, what))
    except Exception as error:
        if mode != "online":
            raise
        log.warning("W&B at %s: %s: logging offline", own.base_url, in_one_line(error))
        leave_service()  # for which the run's id would stay in use
        own_settings()
        return ask_service(2 * PATIENCE_SECONDS, partial(_init, "offline", what))


def _init(mode: str, what: dict[str, Any]) -> Any:
    import wandb

    chosen: dict[str, Any] = {**what, "mode": mode}
    run = wandb.init(settings=wandb.Settings(**quiet_settings()), **chosen)
    for axis in (EPOCH, BITS, SECONDS):
        run.define_metric(axis, hidden=True)
    for events, axis in {**dict.fromkeys(EVENTS, EPOCH), **SCORES_OVER}.items():
        run.define_metric(f"{events}/*", step_metric=axis, step_sync=False)
    return run


def _offline_files(run_id: str) -> str:
    """Return the pattern of a run's offline folders, in its own folder or where W&B is told to.

    W&B adds a number after the id if two starts are in the same second.
    """
    pattern = f"wandb/offline-run-*-{run_id}*"
    elsewhere = os.environ.get("WANDB_DIR")
    return str(Path(elsewhere).absolute() / pattern) if elsewhere else pattern


def _warn(error: Exception) -> None:
    log.warning("W&B does not work here, the run goes on without it: %s", in_one_line(error))
