"""Reports on a sweep: its rows and expected time, then progress, failures and results.

This module imports torch only when it is needed, as Hydra makes the callback for every command.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from gcbench.core.errors import ConfigError, safe_text
from gcbench.runner.command.search import is_search, swept_keys
from gcbench.runner.config.compose import points_of
from gcbench.runner.config.errors import COMPOSITION_ERRORS, RunFailed, outcome
from gcbench.runner.config.naming import row_directory, run_directory
from gcbench.runner.config.resolve import resolve
from gcbench.runner.differences import differences
from gcbench.runner.identity import BOOKKEEPING, SWEPT, digest
from gcbench.runner.launch.same import (
    find_same_run,
    is_final_result,
    name_suffix,
    read_result_or_warn,
)
from gcbench.runner.records.store import read_run
from gcbench.runner.records.summary import result_in_short
from gcbench.runner.settings.config import RunConfig

log = logging.getLogger("gcbench")


@dataclass
class SweepRow:
    """One job of a sweep before it starts."""

    name: str  # its directory, as it is typed
    config: RunConfig | None = None
    mistake: str | None = None  # why it will be refused when its turn comes
    chosen: bool = False  # whether the user chose its directory
    done: bool = False  # or diverged, as it would again
    # The directory of the same run under another name, which has or will have the result.
    same: str | None = None
    seconds: float | None = None  # expected; None if unknown
    took: float = 0.0  # actual seconds
    failed: bool = False
    label: str = ""  # what was typed for it and not for all rows


@dataclass
class SweepProgress(Callback):
    """A callback that reports the progress of a sweep over its rows.

    Skipping and resuming are left to the runs: one that has a result, also under another name, is
    skipped, and an interrupted one is resumed. The points of a search are not known before they
    run; they are compared at the end.
    """

    rows: list[SweepRow] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)  # names of rows by their reason
    ended: int = 0
    # Whether jobs run in sequence; if not, the ended ones do not tell how much time is left.
    one_by_one: bool = True
    started: float = 0.0
    # The process that waits for the rows, and its folder: rows may run in others.
    process: int = field(default_factory=os.getpid)
    folder: Path = field(default_factory=Path.cwd)
    searched: list[Path] = field(default_factory=list)  # the directories of a search's points
    last: JobReturn | None = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        with suppress(*COMPOSITION_ERRORS):  # they are told when the run begins
            outcome.note_missing(Path(config.directory or config.outputs).absolute())

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self.on_run_start(config)
        os.environ[SWEPT] = ",".join(swept_keys(config.hydra))
        if is_search(config.hydra):
            return
        try:
            str(config.hydra.sweep.dir)  # a time in it is then the same in every row
            jobs = list(_jobs(config))
            self.rows = [_make_row(job, number) for number, job in enumerate(jobs)]
        except COMPOSITION_ERRORS:
            return  # a key that does not exist, say: the first row ends the sweep with this error
        self.one_by_one = config.hydra.launcher._target_.endswith("BasicLauncher")
        typed = [list(job.hydra.overrides.task) for job in jobs]
        shared = set(typed[0]).intersection(*typed) if typed else set()
        for row, own in zip(self.rows, typed, strict=True):
            row.label = " ".join(override for override in own if override not in shared)
        _mark_same(self.rows)
        _estimate([row for row in self.rows if row.config and not row.done], Path(config.outputs))
        log.info(plan_sentence(self.rows))

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        # Hydra would keep the configurations of all rows, 0.4 MiB each, to the end of the sweep.
        if self.last is not None:
            self.last.cfg = self.last.hydra_cfg = None
        self.started = time.monotonic()
        if self.ended < len(self.rows) and os.getpid() == self.process:
            log.info("%s ...", self._place(self.ended))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        number, self.ended = self.ended, self.ended + 1
        self.last = job_return
        if is_search(config.hydra) and job_return.status is JobStatus.COMPLETED:
            own = self.folder / row_directory(config, number)
            there = (own / "result.json").exists()
            self.searched.append(own if there else find_same_run(resolve(config), own) or own)
        if number >= len(self.rows):  # a single run, or a point of a search
            return
        error: Any = getattr(job_return, "_return_value", None)
        failed = job_return.status is JobStatus.FAILED
        listed = failed and isinstance(error, (ConfigError, RunFailed, OSError))
        if listed:  # Hydra would end the sweep at the first such error, with a message of its own
            job_return.status, job_return.return_value = JobStatus.COMPLETED, None
        if os.getpid() != self.process:  # the process that waits will read the result
            if listed:
                print(f"gcbench: {error}", file=sys.stderr)
            return
        row = self.rows[number]
        result = read_result_or_warn(self.folder / row.name / "result.json")
        row.took = result.duration if result else 0.0
        if self.started and self.one_by_one:  # with its start and its end
            row.took = max(row.took, time.monotonic() - self.started)
        if failed:
            row.failed = True
            self.failed.setdefault(safe_text(str(error)), []).append(row.name)
            if listed:
                outcome.listed.append(error)
            ending_note = "failed"
        elif row.done:
            ending_note = f"the same run as {row.same}" if row.same else "done before"
        else:
            reached = [result_in_short(result) if result else "", f"took {_minutes(row.took)}"]
            ending_note = ", ".join(filter(None, reached))
        log.info("%s: %s%s", self._place(number), ending_note, self._time_left())

    def _place(self, number: int) -> str:
        row = self.rows[number]
        return f"row {number + 1} of {len(self.rows)}, {row.label or row.name}"

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        if is_search(config.hydra):
            _compare(self.searched, config)
            found = Path(config.hydra.sweep.dir) / "optimization_results.yaml"
            if found.exists():  # as Optuna writes it, over that of an earlier search
                suffix = digest(sorted(config.hydra.overrides.task))
                log.info("the best: %s", found.replace(found.with_stem(f"{found.stem}-{suffix}")))
        for row in self.rows[self.ended :]:  # they ran in other processes, which told nothing
            self.ended += 1
            if reason := _failure_on_disk(row):
                self.failed.setdefault(reason, []).append(row.name)
                outcome.listed.append(RunFailed(reason))
        if self.rows:
            _compare([Path(row.same or row.name) for row in self.rows], config)
        if self.failed:
            self._list_failures()

    def _list_failures(self) -> None:
        listed = "".join(
            "\n    ".join([f"\n  {reason}:", *names]) if names[1:] else f"\n  {names[0]}: {reason}"
            for reason, names in self.failed.items()
        )
        diverged = any(reason.startswith("the run diverged") for reason in self.failed)
        log.warning(
            "%d of %d row%s failed; the same command tries them again%s:%s",
            sum(map(len, self.failed.values())),
            self.ended,
            "s" * (self.ended != 1),
            ", those that diverged only with rerun=true" * diverged,
            listed,
        )

    def _time_left(self) -> str:
        rest = [row for row in self.rows[self.ended :] if not row.done and not row.mistake]
        if not rest:
            return ""
        to_go = f"; {len(rest)} to go"
        if not self.one_by_one:
            return to_go
        # A failed row took less than a whole one, and says nothing about the others.
        ended = [row for row in self.rows[: self.ended] if not row.done and not row.failed]
        if not ended and any(row.seconds is None for row in rest):
            return to_go
        spent = sum(row.took for row in ended)
        expected = sum(row.seconds or 0 for row in ended)
        mean = spent / max(1, len(ended))
        pace = spent / expected if expected else 1.0
        left = sum(mean if row.seconds is None else pace * row.seconds for row in rest)
        return f"{to_go}, about {_minutes(left)}"


def plan_sentence(rows: Sequence[SweepRow]) -> str:
    """Return a sentence that says how many rows there are and how long they take."""
    todo = [row for row in rows if not row.done and not row.mistake]
    done = sum(row.done and not row.same for row in rows)
    mistaken = [row.mistake for row in rows if row.mistake]
    same = [row.same for row in rows if row.same]
    text = f"{len(rows)} row{'s' * (len(rows) != 1)}"
    if done:
        text += f", {done} of them done before"
    if same:
        more = ", ..." if len(same) > 1 else ""
        text += f", {len(same)} of them the same run as another ({same[0]}{more})"
    if mistaken:
        text += f", {len(mistaken)} of them mistaken ({mistaken[0]})"
    known = [row.seconds for row in todo if row.seconds is not None]
    if not todo:
        return f"{text}; type rerun=true to run them again" if done or same else text
    if not known:
        return f"{text}; how long they take is not known before the first has run"
    mean = sum(known) / len(known)
    return f"{text}; {len(todo)} x about {_minutes(mean)} = {_minutes(mean * len(todo))}"


def _jobs(config: DictConfig) -> Iterator[DictConfig]:
    """Yield the composed configuration of every job, as Hydra's own sweeper makes it."""
    loader = GlobalHydra.instance().config_loader()
    searched = (config.hydra.sweeper.get("params") or {}).items()
    of_file = [f"{key}={values}" for key, values in searched]
    for point in points_of([*of_file, *config.hydra.overrides.task]):
        yield loader.load_sweep_config(config, point)


def _make_row(composed: DictConfig, number: int) -> SweepRow:
    try:
        resolved = resolve(composed)
        directory = Path(row_directory(composed, number))
        chosen = directory != Path(run_directory(composed))
    except ConfigError as error:
        return SweepRow(" ".join(composed.hydra.overrides.task), mistake=safe_text(str(error)))
    result = read_result_or_warn(directory / "result.json")
    done = not resolved.rerun and is_final_result(result, resolved)
    return SweepRow(str(directory), resolved, chosen=chosen, done=done)


def _failure_on_disk(row: SweepRow) -> str | None:
    """Return why a row that has ended failed, by what it left; None if it did not."""
    if row.mistake or row.config is None:
        return row.mistake
    result = read_result_or_warn(Path(row.same or row.name, "result.json"))
    if result is None or differences(result.config, row.config.as_dict(), BOOKKEEPING):
        return "it left no result"
    return None if result.status == "done" else f"the run {result.status}: {result.reason}"


def _mark_same(rows: Sequence[SweepRow]) -> None:
    """Mark rows whose result is in another directory, or will be once an earlier row has run."""
    earlier: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.config is None or row.config.rerun or row.chosen:
            continue
        directory, budget = Path(row.name), row.config.choices["budget"]
        key = budget, name_suffix(directory)
        if not row.done:
            other = find_same_run(row.config, directory)
            row.same = str(other) if other else earlier.get(key)
            row.done = row.same is not None
        earlier.setdefault(key, row.same or row.name)


def _compare(directories: Sequence[Path], config: DictConfig) -> None:
    """Print a comparison of the points that ended well, and draw it."""
    from gcbench.runner.report.document import show_document
    from gcbench.runner.report.figures.draw import draw_points
    from gcbench.runner.report.points import compare_points

    distinct = dict.fromkeys(directories)
    runs = [read_run(path) for path in distinct if read_result_or_warn(path / "result.json")]
    if len(runs) < 2:
        return
    for table in compare_points(runs, _goal(config)):
        show_document(table, "terminal")
    suffix = digest(sorted(config.hydra.overrides.task))
    for files in draw_points(runs, Path(config.outputs) / "figures" / "sweeps", suffix):
        log.info("drawn: %s", files)
    if name := config.get("name"):
        place = "" if config.outputs == "outputs" else f" results={config.outputs}"
        again = f"gcbench report name={name}{place} format=latex"
        log.info("this table as latex, markdown or csv: %s", again)


def _goal(config: DictConfig) -> float | None:
    """Return the target that was typed for all rows, of which runs made without it know nothing."""
    values: dict[str, float | None] = {
        key: config.trainer.get(key) for key in ("target", "stop_at")
    }
    return next((value for value in values.values() if value is not None), None)


def _estimate(rows: Sequence[SweepRow], outputs: Path) -> None:
    begun = time.monotonic()
    from gcbench.runner.launch.estimate import (  # imports torch, as workers will
        START_SECONDS,
        Estimates,
    )

    estimates = Estimates(
        filter(None, (read_result_or_warn(path) for path in outputs.rglob("result.json"))),
        START_SECONDS + time.monotonic() - begun,
    )
    for row in rows:
        row.seconds = estimates.seconds(row.config) if row.config else None


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
