"""Lists of what ran: every run, the points of a sweep, and where runs come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gcbench.console import TextTable
from gcbench.identity import all_knobs, tell_apart
from gcbench.records.schema import Environment
from gcbench.records.store import RecordedRun
from gcbench.records.summary import advice_on_share, share_in_words
from gcbench.report.document import (
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
from gcbench.report.figures.series import EXECUTED, Drawn, Series, Workload, series_by_workload
from gcbench.report.measures import MEASURES, main_score, measure

if TYPE_CHECKING:
    from pandas import DataFrame


COLUMNS = (
    Heading("accuracy", "accuracy", "%", digits=2),
    Heading("perplexity", "perplexity"),
    Heading("distance", "distance"),
    Heading("loss", "test loss"),
    Heading("ratio", "ratio", "x fp32", digits=1),
    Heading("received_ratio", "received", "x fp32 all-reduce", digits=1),
    Heading("data_mib_per_epoch", "sent", "MiB an epoch"),
    Heading("step_milliseconds", "step", "ms"),
)
MOST = 4  # overrides of a run that are shown; more would make its line hard to read


def list_runs(runs: Sequence[RecordedRun]) -> TextTable:
    """Return a row for every run, in the order of `runs`; below them why some are not done."""
    headings = [
        "run",
        "what",
        "budget",
        "seed",
        "status",
        "score",
        "ratio",
        "received",
        "ms per step",
    ]
    overrides = overrides_by_run({run: run.title for run in runs})
    rows = [_texts(run, overrides[run]) for run in runs]
    marks, explained = marks_of(runs), {DIRTY: DIRTY_NOTE, STALE: STALE_NOTE}
    notes = [f"{mark} {explained[mark]}" for mark in marks]
    notes += [
        f"{run.place}: {run.status}: {run.result.reason}" for run in runs if run.result.reason
    ]
    return TextTable([*headings, "finished"], rows, left=(0, 1, 2, 4, 5, 9), notes=notes)


def overrides_by_run(titles: Mapping[RecordedRun, str]) -> dict[RecordedRun, list[str]]:
    """Return the overrides that distinguish each run from others of its title, null ones last."""
    called_alike: dict[str, list[RecordedRun]] = {}
    for run, title in titles.items():
        called_alike.setdefault(title, []).append(run)
    return {
        run: sorted(overrides, key=lambda override: override.endswith("=null"))
        for peers in called_alike.values()
        for run, overrides in zip(
            peers, tell_apart([{**peer.choices, **peer.flat} for peer in peers]), strict=True
        )
    }


def add_overrides(title: str, overrides: Sequence[str]) -> str:
    """Return a title with at most `MOST` of these overrides."""
    more = ["..."] if len(overrides) > MOST else []
    return " ".join([title, *overrides[:MOST], *more])


def _texts(run: RecordedRun, overrides: Sequence[str]) -> list[str]:
    """Return the cells of a run; `overrides` distinguish it from other runs of its title."""
    result = run.result
    what = add_overrides(run.title, overrides)
    if run.title != run.experiment:
        what += f", {result.workers or '?'} worker{'s' * (result.workers != 1)}"
    scored = main_score(result)
    return [
        run.place,
        what,
        run.budget,
        str(run.seed),
        run.status + marks_of([run]),
        f"{scored[0]} {_text(scored[1])}" if scored else EMPTY,
        _text(measure("ratio", result)),
        _text(measure("received_ratio", result)),
        _text(measure("step_milliseconds", result)),
        result.finished_minute,
    ]


def _text(value: float | None) -> str:
    return EMPTY if value is None else format_number(value, None)


def compare_points(runs: Sequence[RecordedRun]) -> Iterator[TextTable]:
    """Yield one table per workload of the runs, with one row per configuration over its seeds.

    A row is named by its method and the knobs in which it differs from the others.
    """
    for workload, drawn in series_by_workload(runs, EXECUTED).items():
        if drawn.series:
            yield _table(workload, drawn)


def _table(workload: Workload, drawn: Drawn) -> TextTable:
    shown = [heading for heading in COLUMNS if any(s.values(heading.key) for s in drawn.series)]
    return TextTable(
        ["point", *(heading.text for heading in shown)],
        [[series.label, *(_cell(series, heading) for heading in shown)] for series in drawn.series],
        title=workload.title,
        notes=[*drawn.notes, *_barely_compressed(drawn.series)],
    )


def _barely_compressed(series: Sequence[Series]) -> Iterator[str]:
    """Yield a note for each reason why points sent most of the gradient as it was."""
    by_reason: dict[str, list[str]] = {}
    for one in series:
        result = one.runs[0].result
        share = result.compressed_share
        if share is not None and (advice := advice_on_share(share, result.config)):
            by_reason.setdefault(f"{share_in_words(share)} {advice}", []).append(one.label)
    for reason, labels in by_reason.items():
        yield f"{', '.join(labels)}: compressed {reason}."


def _cell(series: Series, heading: Heading) -> str:
    values = series.values(heading.key)
    return format_summary(Summary.of(values), heading) if values else EMPTY


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


def knobs_of(run: RecordedRun) -> dict[str, Any]:
    """Return a run's knobs by command-line key, including those of how it was executed."""
    knobs = all_knobs(run.config).items()
    return {key: value for key, value in knobs if not key.endswith("._target_")}


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
    return f"{machine.cpu or 'CPU'}, {machine.cores} cores"
