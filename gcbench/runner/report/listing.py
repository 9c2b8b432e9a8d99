"""Lists of what ran: every run, every configuration, and where runs come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gcbench.core.fields import format_value
from gcbench.runner.config.budget import PAPER
from gcbench.runner.console import TextTable
from gcbench.runner.identity import ELSEWHERE, Flat, digest
from gcbench.runner.records.folders import hash_of
from gcbench.runner.records.schema import Environment
from gcbench.runner.records.store import RecordedRun, newest
from gcbench.runner.report.document import (
    DIRTY,
    DIRTY_NOTE,
    EMPTY,
    STALE,
    STALE_NOTE,
    Heading,
    Summary,
    format_number,
    format_summary,
    marks_of,
)
from gcbench.runner.report.figures.series import (
    tell_runs_apart,
)
from gcbench.runner.report.measures import MEASURES, main_score, measure
from gcbench.runner.report.selection import in_order, knobs_of, value_of

if TYPE_CHECKING:
    from pandas import DataFrame


MOST = 4  # overrides of a run that are shown; more would make its line hard to read


def list_runs(runs: Sequence[RecordedRun], sort: str | None = None) -> TextTable:
    """Return a row for every run, in the order of `runs`, with its place in the last column.

    `sort` is the key by which they are sorted, which is shown, too.
    """
    overrides = overrides_by_run({run: run.title for run in runs})
    headings = ["hash", "seed", "score", "ratio", "ms", "status", "finished"]
    own = _own_column(sort)
    rows = [
        [
            _hash(run),
            str(run.seed),
            _score([run]),
            _mean("ratio", [run]),
            _mean("step_milliseconds", [run]),
            run.status + marks_of([run]),
            run.result.finished_minute[5:],
            *(_value(key, [run]) for key in own),
            _what(run, overrides[run]),
            run.place,
        ]
        for run in (run for (run,) in _sorted([[run] for run in runs], sort))
    ]
    titles = [*headings, *own, "what", "run"]
    return TextTable(
        titles, rows, left=(0, 2, 5, 6, *_last(titles, 2)), notes=_notes(runs), below=2
    )


def list_configurations(runs: Sequence[RecordedRun], sort: str | None = None) -> TextTable:
    """Return a row for each configuration, with means over its seeds; the newest one last.

    `sort` is the key by which they are sorted instead. The hash is that of the newest run.
    """
    overrides = overrides_by_run({run: run.title for run in runs})
    groups: dict[tuple[str, ...], list[RecordedRun]] = {}
    for run in runs:
        groups.setdefault((run.title, run.budget, digest(run.executed)), []).append(run)
    own = _own_column(sort)
    rows = []
    for every in _sorted([newest(same)[0] for same in groups.values()], sort):
        last = max(every, key=lambda run: run.result.finished)
        done = [run for run in every if run.done]
        ended = Counter(run.status for run in every if not run.done)
        rows.append(
            [
                _hash(last),
                str(len(done)),
                _score(done),
                _mean("ratio", done),
                *([] if own else [_mean("bf16_ratio", done)]),
                *(_value(key, every) for key in own),
                ", ".join(["done"] * bool(done) + [f"{n} {status}" for status, n in ended.items()])
                + marks_of(every),
                last.result.finished[:10],
                _what(every[0], overrides[every[0]]),
            ]
        )
    titles = ["hash", "n", "score", "x fp32", *(own or ["x bf16"]), "status", "finished", "what"]
    return TextTable(titles, rows, left=(0, 2, 5, 6, 7), notes=_notes(runs), below=1)


SHOWN = ("accuracy", "perplexity", "distance", "loss", "ratio", "step_milliseconds", "finished")


def _own_column(sort: str | None) -> list[str]:
    """Return the key by which runs are sorted, unless a column shows it already."""
    key = (sort or "").removeprefix("-")
    return [key] if key and key not in (*SHOWN, "seed", "status", "hash", "run") else []


def _sorted(groups: Sequence[Sequence[RecordedRun]], sort: str | None) -> Any:
    return in_order(groups, sort) if sort else groups


def _value(key: str, runs: Sequence[RecordedRun]) -> str:
    """Return what runs of one configuration have for a key: a mean, or the first one's text."""
    values = [value for run in runs if (value := value_of(run, key)) is not None]
    if key in MEASURES and values:
        return format_number(fmean(values), None)
    return format_value(values[0]) if values else EMPTY


def _last(titles: Sequence[str], count: int) -> range:
    return range(len(titles) - count, len(titles))


def _hash(run: RecordedRun) -> str:
    """Return the hash by which commands find the run's folder; a kept run has none."""
    return hash_of(run.place) if Path(run.place).is_dir() else EMPTY


def _what(run: RecordedRun, overrides: Sequence[str]) -> str:
    """Return a run's name with its method, or its title, and what distinguishes it."""
    title, method = run.title, f"compressor={run.choices['compressor']}"
    if title == run.config.get("name"):
        title += f" {run.choices['compressor']}"
    shown = [one for one in overrides if one != method or title == run.experiment]
    return add_overrides(title, shown) + ("" if run.budget == PAPER else f" budget={run.budget}")


def _notes(runs: Sequence[RecordedRun]) -> list[str]:
    """Return what marks mean, and why some runs are not done."""
    explained = {DIRTY: DIRTY_NOTE, STALE: STALE_NOTE}
    return [f"{mark} {explained[mark]}" for mark in marks_of(runs)] + [
        f"{run.place}: {run.status}: {run.result.reason}" for run in runs if run.result.reason
    ]


def _score(runs: Sequence[RecordedRun]) -> str:
    """Return the main score's name and its mean, with its deviation over several seeds."""
    scored = [score for run in runs if (score := main_score(run.result))]
    if not scored:
        return EMPTY
    name, summary = scored[0][0], Summary.of([value for _, value in scored])
    digits = 2 if abs(summary.mean) >= 1 else None
    heading = Heading(name, name, digits=digits, deviation=True, counted=False)
    return f"{name} {format_summary(summary, heading)}".replace("+- ", "±")


def _mean(name: str, runs: Sequence[RecordedRun]) -> str:
    values = [value for run in runs if (value := measure(name, run.result)) is not None]
    return format_number(fmean(values), 1) if values else EMPTY


def overrides_by_run(titles: Mapping[RecordedRun, str]) -> dict[RecordedRun, list[str]]:
    """Return the overrides that distinguish each run from others of its title, null ones last."""
    called_alike: dict[str, list[RecordedRun]] = {}
    for run, title in titles.items():
        called_alike.setdefault(title, []).append(run)
    return {
        run: sorted(overrides, key=lambda override: override.endswith("=null"))
        for peers in called_alike.values()
        for run, overrides in zip(
            peers,
            tell_runs_apart(peers, [_as_typed(peer) for peer in peers]),
            strict=True,
        )
    }


def _as_typed(run: RecordedRun) -> Flat:
    """Return a run's choices and settings, without the classes that choices stand for."""
    choices = {k: v for k, v in run.result.choices.items() if k not in {*ELSEWHERE, "budget"}}
    return choices | {k: v for k, v in run.flat.items() if not k.endswith("_target_")}


def add_overrides(title: str, overrides: Sequence[str]) -> str:
    """Return a title with at most `MOST` of these overrides."""
    more = ["..."] if len(overrides) > MOST else []
    return " ".join([title, *overrides[:MOST], *more])


def runs_frame(runs: Sequence[RecordedRun]) -> DataFrame:
    """Return a row for every run: what it was, how it ended, all measures, and all knobs.

    Measures are plain numbers. The columns of knobs have their command-line keys as names.
    """
    from pandas import DataFrame  # slow to import, and other commands do not need it

    return DataFrame([_record(run) for run in runs])


def _record(run: RecordedRun) -> dict[str, Any]:
    return {
        "run": run.place,
        "experiment": run.experiment,
        **run.choices,
        "workers": run.result.workers,
        "budget": run.budget,
        "seed": run.seed,
        "status": run.status,
        "reason": run.result.reason,
        "finished": run.result.finished,
        **{name: measure(name, run.result) for name in MEASURES},
        **knobs_of(run),
    }


def older_than(runs: Sequence[RecordedRun]) -> list[str]:
    """Return how many runs are older than each change of their numbers."""
    counts = Counter(f"{one.commit}: {one.text}" for run in runs for one in run.outdated_by)
    return [
        f"{STALE} {count} of {len(runs)} runs {'are' if count > 1 else 'is'} older than {change}"
        for change, count in counts.items()
    ]


def made_by(environments: Sequence[Environment], mark: str = "") -> list[str]:
    """Return versions, commits, machines and days, one line each.

    `mark` precedes the line on checkouts with uncommitted changes.
    """
    if not environments:
        return []
    days = sorted({one.finished[:10] for one in environments})
    lines = [
        _several("gcbench", [_version(one, "gcbench") for one in environments]),
        _several("commit", [_commit(one) for one in environments]),
        _several("torch", [_version(one, "torch") for one in environments]),
        _several("machine", [machine_of(one) for one in environments]),
        f"finished: {' to '.join(dict.fromkeys([days[0], days[-1]]))}",
    ]
    return lines + dirty_of(environments, mark)


def dirty_of(environments: Sequence[Environment], mark: str) -> list[str]:
    """Return how many come from a checkout with uncommitted changes, in one line or none."""
    dirty = sum(bool(one.git and one.git.dirty) for one in environments)
    return [f"{mark}{dirty} of {len(environments)} runs come {DIRTY_NOTE}"] if dirty else []


def _several(label: str, values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    count = f"{len(different)} different: " if len(different) > 1 else ""
    return f"{label}: {count}{'; '.join(different)}"


def _version(environment: Environment, package: str) -> str:
    return str(environment.versions.get(package, "unknown"))


def _commit(environment: Environment) -> str:
    commit = environment.git and environment.git.commit
    return commit[:7] if commit else "unknown"


def machine_of(environment: Environment) -> str:
    machine = environment.machine
    if machine is None:
        return "unknown"
    if environment.device == "cuda" and machine.gpus:
        return machine.gpus[0]
    vectors = (
        f", {machine.cpu_capability}" if machine.cpu_capability else ""
    )  # which results follow
    return f"{machine.cpu or 'CPU'}, {machine.cores} cores{vectors}"
