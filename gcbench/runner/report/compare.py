"""`gcbench report diff A B`: compare two runs or two trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.runner.config.budget import PAPER
from gcbench.runner.differences import flat_differences
from gcbench.runner.records.store import FoundRuns, RecordedRun, find_runs, newest
from gcbench.runner.report.document import EMPTY, Heading, Summary, format_signed, format_summary
from gcbench.runner.report.listing import add_overrides, overrides_by_run
from gcbench.runner.report.measures import MEASURES, SCORES, measure_by_seed
from gcbench.runner.report.significance import LEVEL, Noise

SHOWN = [name for name in MEASURES if name != "error_rate"]  # accuracy says the same


class Group(NamedTuple):
    """Runs that differ in their seeds only."""

    title: str
    runs: list[RecordedRun]  # the newest run of each seed

    @property
    def identity(self) -> str:
        return self.runs[0].result.identity

    @property
    def done(self) -> list[RecordedRun]:
        return [run for run in self.runs if run.done]


class Sides(NamedTuple):
    """One measure of both sides."""

    name: str
    a: Summary | None
    b: Summary | None
    apart: float | None  # the mean of B minus that of A
    verdict: str  # whether scores differ by more than noise; else empty


class Comparison(NamedTuple):
    """The differences between two groups of runs."""

    title: str
    configuration: list[tuple[str, str, str]]  # key, value of A, value of B
    measured: list[Sides]
    statuses: list[str]  # one line for each run that did not end well


class Comparisons(NamedTuple):
    """All pairs of groups that two trees have in common, and the groups of only one of them."""

    pairs: list[Comparison]
    alone: list[str]  # a line for each group that only one tree has


def compare(a: str, b: str) -> Comparisons:
    """Return the differences between two folders. Raises ConfigError if one of them has no runs."""
    left = _group_runs(_load(a))
    right = _group_runs(_load(b))
    if len(left) == len(right) == 1:
        return Comparisons([_compare_groups(left[0], right[0])], [])
    pairs = [
        (x, y) for x in left for y in right if x.title == y.title and _match(x, y, left, right)
    ]
    paired = [group for pair in pairs for group in pair]
    overrides = overrides_by_run({group.runs[0]: group.title for group in [*left, *right]})
    alone = [
        f"{add_overrides(group.title, overrides[group.runs[0]])}, "
        f"seed{'s' * (len(group.runs) > 1)} {_list_seeds(group, ', ')}, only in {where}"
        for where, groups in ((a, left), (b, right))
        for group in groups
        if group not in paired
    ]
    return Comparisons([_compare_groups(x, y) for x, y in pairs], alone)


def _load(folder: str) -> list[RecordedRun]:
    if not Path(folder).is_dir():
        wrong = "it is a file" if Path(folder).exists() else "there is no such folder"
        raise ConfigError(
            f"diff {folder}: {wrong}; "
            "type a run's directory, or a folder with several or with files of kept runs"
        )
    read: FoundRuns = find_runs([folder])
    if not read.runs:
        broken = f" ({read.unreadable[0]})" if read.unreadable else ""
        raise ConfigError(
            f"diff {folder}: there is no result.json in or below it{broken}; type a run's directory"
        )
    read.warn()
    return read.runs


def _list_seeds(group: Group, separator: str) -> str:
    return separator.join(str(run.seed) for run in group.runs)


def _group_runs(runs: Sequence[RecordedRun]) -> list[Group]:
    groups: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in runs:
        title = run.title + (f", budget {run.budget}" if run.budget != PAPER else "")
        groups.setdefault((title, run.result.identity), []).append(run)
    return [Group(title, newest(same)[0]) for (title, _), same in groups.items()]


def _match(x: Group, y: Group, left: Sequence[Group], right: Sequence[Group]) -> bool:
    """Return whether two groups have the same configuration, or are the only ones so titled."""
    only = all(sum(group.title == x.title for group in groups) == 1 for groups in (left, right))
    return only or x.identity == y.identity


def _compare_groups(x: Group, y: Group) -> Comparison:
    title = x.title if x.title == y.title else f"{x.title} | {y.title}"
    # Times are compared, too, so that how both were executed is a part of the difference.
    different = flat_differences(x.runs[0].executed, y.runs[0].executed)
    configuration = [(key, format_value(a), format_value(b)) for key, (a, b) in different.items()]
    seeds_x, seeds_y = (_list_seeds(group, ",") for group in (x, y))
    if seeds_x != seeds_y:
        configuration.append(("seed", seeds_x, seeds_y))
    return Comparison(
        title, configuration, list(_measured(x, y)), [*_statuses("A", x), *_statuses("B", y)]
    )


def _measured(x: Group, y: Group) -> Iterator[Sides]:
    for name in SHOWN:
        a, b = measure_by_seed(name, x.done), measure_by_seed(name, y.done)
        if a and b:
            apart = fmean(b.values()) - fmean(a.values())
            verdict = _verdict(a, b) if name in SCORES else ""
            yield Sides(name, _summary(a), _summary(b), apart, verdict)
        elif a or b:
            yield Sides(name, _summary(a), _summary(b), None, "")


def _summary(by_seed: Mapping[int, float]) -> Summary | None:
    return Summary.of([*by_seed.values()]) if by_seed else None


def _verdict(a: Mapping[int, float], b: Mapping[int, float]) -> str:
    """Return whether the means differ, by the test that claims use."""
    error = Noise([a, b]).error({"a": a, "b": b}, {"a": -1, "b": 1})
    if error is None:
        return "no spread known: one seed each"
    apart = abs(fmean(b.values()) - fmean(a.values()))
    more = "more" if 2 * error.p_above(apart) < LEVEL else "no more"
    return f"{more} than noise ({error.half_width():.2g})"


def _statuses(side: str, group: Group) -> list[str]:
    return [
        f"{side}, seed {run.seed}: {run.status}: {run.result.reason}"
        for run in group.runs
        if not run.done
    ]


def format_measured(line: Sides) -> list[str]:
    """Return the cells of the row that compares one measure."""
    heading = Heading(line.name, line.name)
    sides = [format_summary(side, heading) if side else EMPTY for side in (line.a, line.b)]
    deviations = [
        f"{side.deviation:.3g}" if side and side.deviation is not None else EMPTY
        for side in (line.a, line.b)
    ]
    apart = EMPTY if line.apart is None else format_signed(line.apart, None)
    return [line.name, *sides, " | ".join(deviations), apart, line.verdict]
