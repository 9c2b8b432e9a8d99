"""Where a run's metrics go besides its files: W&B, TensorBoard, or metrics.csv."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gcbench.core.fields import format_value
from gcbench.runner.records.files import RunFiles, append_text, clear_errors, replace_file
from gcbench.runner.records.metrics import STEP, prefix_event, totals
from gcbench.runner.records.schema import BITS_PER_MIB, Logged, Result
from gcbench.runner.records.store import Metrics
from gcbench.runner.records.wandb_logger import start_wandb
from gcbench.runner.settings.config import RunConfig

if TYPE_CHECKING:
    from gcbench.runner.records.result import Begun  # it imports torch, which reports do not need


class Logger(Protocol):
    """The destination of a run's metrics besides result.json and metrics.jsonl."""

    @property
    def logged(self) -> Logged | None:
        """Return what result.json says about the logger."""

    def log(self, line: dict[str, Any]) -> None:
        """Log a line of metrics.jsonl."""

    def complete_step(self) -> None:
        """Keep the lines so far even if the process is killed; their last step gets no more."""

    def finish(self, result: Result) -> None: ...


class NoLogger:
    logged = None

    def log(self, line: dict[str, Any]) -> None:
        pass

    def complete_step(self) -> None:
        pass

    def finish(self, result: Result) -> None:
        pass


class CsvLogger:
    """A logger to metrics.csv, with one row per step and one column per metric.

    Args:
        path: the file, which is overwritten.
        lines: the metrics of the run so far, if it is continued.
    """

    def __init__(self, path: Path, lines: Metrics) -> None:
        self.logged = Logged(logger="csv", path=path.name)
        self._path = path
        self._columns = [STEP]
        self._rows: list[dict[str, Any]] = []
        for line in lines:
            self._merge(line)
        self._rewrite()

    def log(self, line: dict[str, Any]) -> None:
        """Log a line; a row is written when it is complete, that is, when the next step begins."""
        if self._rows and self._rows[-1][STEP] != line["step"]:
            self._write_last()
        self._merge(line)

    def complete_step(self) -> None:
        """Do nothing, as a run that continues writes the whole table again."""

    def finish(self, result: Result) -> None:
        self._rewrite()

    def _merge(self, line: dict[str, Any]) -> None:
        if not self._rows or self._rows[-1][STEP] != line["step"]:
            self._rows.append({STEP: line["step"]})
        self._rows[-1].update(prefix_event(line))

    def _write_last(self) -> None:
        if set(self._rows[-1]) <= set(self._columns):
            append_text(self._path, self._format(self._rows[-1:]))
        else:
            self._rewrite()

    def _rewrite(self) -> None:
        self._columns = list(dict.fromkeys(key for row in [{STEP: 0}, *self._rows] for key in row))
        header = dict(zip(self._columns, self._columns, strict=True))
        replace_file(self._path, self._format([header, *self._rows]).encode())

    def _format(self, rows: list[dict[str, Any]]) -> str:
        text = StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue()


class TensorBoardLogger:
    """A logger to TensorBoard event files, with the run's knobs and scores for the HParams tab.

    Args:
        directory: the folder of the event files.
        first_step: the first step to log; what a continued run had logged from there on is purged.
        knobs: the settings that tell the run from others.
        lines: the metrics of the run so far, if it is continued.
    """

    def __init__(
        self, directory: Path, first_step: int, knobs: dict[str, str], lines: Metrics
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter  # its package is optional

        self.logged = Logged(logger="tensorboard", path=directory.name)
        self._directory = directory
        with clear_errors(directory):
            self._writer = SummaryWriter(str(directory), purge_step=first_step)
        self._knobs = knobs
        for line in lines:
            if line["event"] == "test" and _sent_mib(line) >= first_step:  # purged as well
                self._log_over_mib(line)

    def log(self, line: dict[str, Any]) -> None:
        with clear_errors(self._directory):
            for key, value in prefix_event(line).items():
                self._writer.add_scalar(key, value, line["step"])
            if line["event"] == "test":
                self._log_over_mib(line)
            self._writer.flush()  # else a run that is killed after its result would lack its end

    def complete_step(self) -> None:
        """Do nothing, as every line is kept at once."""

    def _log_over_mib(self, line: dict[str, Any]) -> None:
        """Log scores with the MiB sent as their step, which is the only axis that there is."""
        for key, value in prefix_event(line).items():
            if key.startswith("test/"):
                over = key.replace("test", "test_over_mib", 1)
                self._writer.add_scalar(over, value, _sent_mib(line))

    def finish(self, result: Result) -> None:
        if result.status != "interrupted":
            test = {f"test/{k}": v for k, v in (result.test or {}).items() if v is not None}
            self._writer.add_hparams(
                self._knobs, {**test, **totals(result)}, run_name=".", global_step=result.steps
            )
        self._writer.close()


def _sent_mib(line: dict[str, Any]) -> int:
    return round((line.get("bits_sent_per_worker") or 0) / BITS_PER_MIB)


def start_logger(config: RunConfig, files: RunFiles, begun: Begun) -> Logger:
    """Return the logger of a run that begins, or continues after the last line of its metrics."""
    kind = config.logger.kind
    lines = files.read_metrics()
    if kind == "csv":
        return CsvLogger(files.table, lines)
    if kind == "tensorboard":
        knobs = {**config.choices, **config.knobs, "seed": config.seed}
        first_step = lines[-1]["step"] + 1 if lines else 0
        return TensorBoardLogger(
            files.tensorboard,
            first_step,
            {key: format_value(value) for key, value in knobs.items()},
            lines,
        )
    logger = start_wandb(config, files.directory, begun) if kind == "wandb" else None
    return logger or NoLogger()
