"""The series of a figure, each the runs of one configuration, and the names of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from gcbench.core.errors import name_first
from gcbench.runner.config.budget import PAPER
from gcbench.runner.differences import CHOICE_GROUPS, tell_apart
from gcbench.runner.identity import Flat, digest
from gcbench.runner.records.store import RecordedRun, newest
from gcbench.runner.report.measures import MEASURES, SPLIT, TIMES, VALID, measure_by_seed

PARTLY = 0.98  # of the values are compressed: methods below it are marked
NAMED = 5  # series that a note names before it only counts the others


@dataclass(frozen=True, eq=False)
class Series:
    """Runs that differ only in their seeds."""

    label: str  # unique among the series with the same number of workers
    family: str  # the compressor
    runs: list[RecordedRun]  # only runs with the status done
    nth: int = 0  # index within its family
    group: str = ""  # the group of the table's row
    title: str = ""  # name under the group's heading; if empty, the label
    # False if the runs had fewer workers than the row, so that their times are not the row's.
    timed: bool = True

    @property
    def short(self) -> str:
        return self.title or self.label

    def runs_over(self, x: str) -> list[RecordedRun]:
        """Return the runs to draw over `x`: none over seconds if their times are not the row's."""
        return [] if x == "seconds" and not self.timed else self.runs

    def values(self, name: str, **settings: Any) -> list[float]:
        """Return a measure for each seed that has it; `settings` are arguments of the measure."""
        if name in TIMES and not self.timed:
            return []
        return list(measure_by_seed(name, self.runs, **settings).values())


class Drawn(NamedTuple):
    """The series of a figure, and notes on what is not in it."""

    series: list[Series]
    notes: list[str]  # which rows are missing, and which did not finish
    title: str = ""  # what ran, where the panels' titles do not say it


def untimed(series: Iterable[Series]) -> list[str]:
    """Return a note on the series that a figure of times leaves out."""
    labels = [s.label for s in series]
    words = "Without times (virtual workers, or fewer than the row's)"
    return [f"{words}: {name_first(labels, NAMED)}."] if labels else []


def caveats(timed: Sequence[Series]) -> list[str]:
    """Return notes on times that say less: from shared cores, or on an emulated network."""
    runs = [(series, run.result) for series in timed for run in series.runs]
    crowded = {
        f"{series.label} ({result.workers})": None
        for series, result in runs
        if result.oversubscribed
    }
    notes = [f"More processes than cores: {name_first([*crowded], NAMED)}."] if crowded else []
    emulated = any(result.has_emulated_times for _, result in runs)
    return notes + (["Some runs had an emulated network."] if emulated else [])


def add_caption(workload: Workload, drawn: Drawn) -> Drawn:
    """Return what is drawn with its setting as the title, and a note on its seeds and bars."""
    counts = sorted({len(s.runs) for s in drawn.series})
    seeds = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else ""
    budgets = sorted({run.budget for s in drawn.series for run in s.runs} - {PAPER})
    partly = [
        f"{s.label} {100 * (s.runs[0].result.compressed_share or 0):.3g} %"
        for s in drawn.series
        if is_partly_compressed(s)
    ]
    notes = [
        f"Means of {seeds} seeds; bands and whiskers: lowest to highest."
        if counts and counts[-1] > 1
        else "One seed.",
        *([f"Compressed in part only: {', '.join(partly)} of the values."] if partly else []),
        *drawn.notes,
    ]
    return Drawn(drawn.series, notes, ", budget=".join([workload.title, *budgets]))


def is_partly_compressed(series: Series) -> bool:
    """Return whether some values are sent as they were, but for the few of a bias or a norm."""
    shares = [run.result.compressed_share for run in series.runs]
    return any(share is not None and 0 < share < PARTLY for share in shares)


def not_drawn(labeled: Iterable[tuple[str, RecordedRun]]) -> list[str]:
    """Return a note on the runs that did not finish."""
    ended = [f"{label} ({run.status}, seed {run.seed})" for label, run in labeled if not run.done]
    return [f"Not drawn: {', '.join(ended)}."] if ended else []


class Workload(NamedTuple):
    """A task that several methods share; only scores on the same task can be compared."""

    model: str
    dataset: str
    workers: int
    batch_size: int
    length: str
    split: str = "test"  # the data on which scores are measured

    @property
    def name(self) -> str:
        """Return the name of the folder of its figures."""
        length = self.length.replace(" ", "_")
        split = "" if self.split == "test" else f"-{self.split}"
        return f"{self.model}-{self.dataset}-{self.workers}x{self.batch_size}-{length}{split}"

    @property
    def title(self) -> str:
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        split = "" if self.split == "test" else f", split={self.split}"
        return f"{self.model}, {self.dataset}, {workers} x {self.batch_size}, {self.length}{split}"


def workload_of(run: RecordedRun) -> Workload:
    choices, trainer = run.result.choices, run.config["trainer"]
    steps, epochs = trainer.get("max_steps"), trainer["epochs"]
    length = f"{steps} steps" if steps else f"{epochs:g} epoch{'s' * (epochs != 1)}"
    return Workload(
        choices["model"],
        choices["dataset"],
        trainer["workers"],
        trainer["batch_size"],
        length,
        run.flat.get(SPLIT, "test"),
    )


FlatOf = Callable[[RecordedRun], Flat]  # returns the settings that tell runs apart
FLAT: FlatOf = attrgetter("flat")
EXECUTED: FlatOf = attrgetter("executed")  # a sweep may vary only what changes times


def series_by_workload(
    runs: Iterable[RecordedRun], flat_of: FlatOf = FLAT
) -> dict[Workload, Drawn]:
    """Return the series of all runs by workload, whether or not a table has them."""
    return {
        workload: _draw_done(name_configurations(configurations, flat_of))
        for workload, configurations in group_configurations(runs, flat_of).items()
    }


def group_configurations(
    runs: Iterable[RecordedRun], flat_of: FlatOf = FLAT
) -> dict[Workload, list[list[RecordedRun]]]:
    """Return, by workload, the runs of each configuration, which differ only in their seeds."""
    by_workload: dict[Workload, dict[str, list[RecordedRun]]] = {}
    for run in runs:
        by_configuration = by_workload.setdefault(workload_of(run), {})
        by_configuration.setdefault(digest(flat_of(run)), []).append(run)
    return {
        workload: list(configurations.values())
        for workload, configurations in sorted(by_workload.items())
    }


def series_by_task(runs: Iterable[RecordedRun]) -> dict[str, Drawn]:
    """Return the series of timed runs by model, data set and batch size.

    Only those that ran with several numbers of workers are included. A configuration has the
    same label with every number of workers.
    """
    timed = (run for run in runs if run.result.seconds)
    by_name: dict[str, list[list[RecordedRun]]] = {}
    for workload, configurations in group_configurations(timed).items():
        name = f"{workload.model}-{workload.dataset}-{workload.batch_size}"
        by_name.setdefault(name, []).extend(configurations)
    return {
        name: _draw_done(name_configurations(configurations, _flat_of_any_workers))
        for name, configurations in by_name.items()
        if len({runs[0].result.workers for runs in configurations}) > 1
    }


def _flat_of_any_workers(run: RecordedRun) -> Flat:
    return {key: value for key, value in run.flat.items() if key != "trainer.workers"}


def tell_runs_apart(
    runs: Sequence[RecordedRun], flats: Sequence[Flat], fewest: bool = False
) -> list[list[str]]:
    """Return for each run what was typed, for it or another, that tells it apart.

    Where what was typed is not kept or does not tell all `flats` apart, all their settings count.
    """
    typed = {*CHOICE_GROUPS}.union(*(run.config.get("knobs") or {} for run in runs))
    shown = [
        {key: value for key, value in {**run.result.choices, **flat}.items() if key in typed}
        for run, flat in zip(runs, flats, strict=True)
    ]
    enough = len(set(map(digest, shown))) == len(set(map(digest, flats)))
    return tell_apart(shown if enough else flats, fewest)


def name_configurations(
    configurations: Iterable[Sequence[RecordedRun]], flat_of: FlatOf = FLAT
) -> list[Series]:
    """Return a series per configuration, with its newest run of every seed; uncompressed first.

    A label is the method, with the knobs that tell it apart from others of the method.
    """
    families: dict[str, list[list[RecordedRun]]] = {}
    for runs in configurations:
        families.setdefault(runs[0].result.choices["compressor"], []).append(newest(runs)[0])
    series = []
    for family in sorted(families, key=lambda name: (name != "none", name)):
        same = families[family]
        first = [runs[0] for runs in same]
        overrides = tell_runs_apart(first, [flat_of(run) for run in first], fewest=True)
        named = [
            Series(" ".join([family, *knobs]), family, runs)
            for knobs, runs in zip(overrides, same, strict=True)
        ]
        series += sorted(named, key=attrgetter("label"))
    return series


def _draw_done(series: Sequence[Series]) -> Drawn:
    """Return series of only the runs that are done, and a note on the others."""
    drawn: list[Series] = []
    for one in series:
        if done := [run for run in one.runs if run.done]:
            nth = sum(other.family == one.family for other in drawn)
            drawn.append(Series(one.label, one.family, done, nth))
    return Drawn(drawn, not_drawn((one.label, run) for one in series for run in one.runs))


LABELS = {
    **{name: measure.label for name, measure in MEASURES.items()},
    "train_loss": "Training loss",
    "epoch": "Epoch",
    "step": "Steps",
    "bits": "Sent by a worker (MiB)",
    "seconds": "Training time (s)",
}
LOSSES = {"loss", "train_loss"}


def label_of(name: str, series: Iterable[Series]) -> str:
    """Return the axis label of the measure `name` for these series.

    The loss of runs with an accuracy or a perplexity is a cross-entropy, in nats. The label says
    so, and also if all or some runs were scored on validation data.
    """
    runs = [run for one in series for run in one.runs]
    tests = [run.result.test or {} for run in runs]
    entropy = (
        name in LOSSES and tests and all({"accuracy", "perplexity"} & set(test) for test in tests)
    )
    label = LABELS[name] + (" (nats)" if entropy else "")
    parts = {workload_of(run).split for run in runs}
    if VALID in parts:
        word = "test or validation" if len(parts) > 1 else "validation"
        label = label.replace("Test ", f"{word.capitalize()} ").replace(" test ", f" {word} ")
    return label
