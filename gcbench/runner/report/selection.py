"""Which runs are listed, and in what order: by any key of a run and by any measure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from statistics import fmean
from typing import Any

from gcbench.core.errors import ConfigError, name_first, near, nearest
from gcbench.core.fields import format_value
from gcbench.runner.identity import all_knobs
from gcbench.runner.records.folders import hash_of
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.measures import MEASURES, measure

NAMED = 5  # values or keys that a refusal lists
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
OF_RUN: dict[str, Callable[[RecordedRun], Any]] = {
    "hash": lambda run: hash_of(run.place),
    "name": lambda run: run.config.get("name"),
    "experiment": lambda run: run.experiment,
    "workers": lambda run: run.result.workers,
    "seed": lambda run: run.seed,
    "status": lambda run: run.status,
    "reason": lambda run: run.result.reason,
    "finished": lambda run: run.result.finished,
    "run": lambda run: run.place,
}


def knobs_of(run: RecordedRun) -> dict[str, Any]:
    """Return a run's knobs by command-line key, including those of how it was executed."""
    knobs = all_knobs(run.config).items()
    return {key: value for key, value in knobs if not key.endswith("_target_")}


def value_of(run: RecordedRun, key: str) -> Any:
    """Return what a run has for a key or a measure; None if it has nothing."""
    if key in MEASURES:
        return measure(key, run.result)
    if key in OF_RUN:
        return OF_RUN[key](run)
    if key in run.result.choices:
        return run.result.choices[key]
    return knobs_of(run).get(key)


def select(
    runs: Sequence[RecordedRun], wanted: Sequence[str], since: str | None, others: Sequence[str]
) -> list[RecordedRun]:
    """Return the runs that have all of `wanted`, as key=value, and ended after `since`.

    Several values, separated by commas, are alternatives. Raises ConfigError for a key or a value
    that no run has; `others` are the keys that may have been meant besides.
    """
    begin = time_since(since).isoformat() if since else ""
    left = [run for run in runs if run.result.finished >= begin]
    for one in wanted:
        key, _, text = one.partition("=")
        refuse_unknown("", key, f"={text}", runs, others)
        values = {run: value_of(run, key) for run in runs}
        fitting = {run for run, value in values.items() if _is_one_of(value, text.split(","))}
        if runs and not fitting:
            known = [*dict.fromkeys(format_value(v) for v in values.values() if v is not None)]
            likely = near(text, known) or name_first(known, NAMED)
            raise ConfigError(f"{one}: no run has this; type {key}={likely}")
        left = [run for run in left if run in fitting]
    return left


def refuse_unknown(
    before: str, typed: str, after: str, runs: Sequence[RecordedRun], others: Sequence[str] = ()
) -> None:
    """Raise ConfigError for a key that no run has; `before` and `after` it stands what was typed.

    `others` are keys that may have been meant besides.
    """
    key = typed.removeprefix("-") if before else typed
    known = {*OF_RUN, *MEASURES}.union(*({*run.result.choices, *knobs_of(run)} for run in runs))
    if key not in known and runs:
        meant = sorted(one for one in known if one.rpartition(".")[2] == key)
        meant = meant or nearest(key, {*known, *others})
        advice = " or ".join(f"{before}{one}{after}" for one in meant)
        advice = advice or "one of the columns of gcbench runs format=csv"
        raise ConfigError(f"{before}{typed}{after}: no run has this key; type {advice}")


def in_order(groups: Iterable[Sequence[RecordedRun]], key: str) -> list[Sequence[RecordedRun]]:
    """Return groups of runs by the mean of a key, ascending, or with - before it descending.

    Those without a value come last, as they do for either direction.
    """
    name = key.removeprefix("-")
    values = [(_mean([value_of(run, name) for run in group]), group) for group in groups]
    known = [(value, group) for value, group in values if value is not None]
    numbers = all(isinstance(value, (int, float)) for value, _ in known)
    known.sort(key=lambda pair: pair[0] if numbers else format_value(pair[0]), reverse=key != name)
    return [group for _, group in known] + [group for value, group in values if value is None]


def _mean(values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    if all(type(value) in (int, float) for value in there):
        return fmean(there) if there else None
    return there[0]


def _is_one_of(value: Any, texts: Sequence[str]) -> bool:
    return any(_is(value, text) for text in texts)


def _is(value: Any, text: str) -> bool:
    if isinstance(value, float):
        try:
            return float(text) == value
        except ValueError:
            return False
    return format_value(value) == text


def time_since(text: str) -> datetime:
    """Return the time that was typed, as 2d ago or as a date; raise ConfigError for another."""
    if ago := re.fullmatch(rf"(\d+(?:\.\d+)?)([{''.join(UNITS)}])", text):
        unit = {UNITS[ago[2]]: float(ago[1])}
        return datetime.now(timezone.utc) - timedelta(**unit)
    try:
        return datetime.fromisoformat(text).astimezone(timezone.utc)
    except ValueError:
        raise ConfigError(
            f"since={text}: type a time that has passed, as in since=30m, 12h, 2d or 1w, or a "
            "date, as in since=2026-01-31"
        ) from None
