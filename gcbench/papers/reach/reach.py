"""Time to a score: epochs of kept curves times predicted steps, on any link with any workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gcbench.core.conf import Config
from gcbench.papers.tables.configs import compose_row
from gcbench.papers.tables.rows import Row
from gcbench.papers.tables.tables import Reach, Table
from gcbench.runner.network import Link
from gcbench.runner.predict.devices import (
    Device,
    ethernet_latency,
    format_seconds,
    read_device,
    read_link,
)
from gcbench.runner.predict.model import Cluster, Compute, Method, Prediction, predict
from gcbench.runner.predict.recorded import INSTANT
from gcbench.runner.predict.subject import method_of, methods_by_exchange
from gcbench.runner.predict.target import First, epochs_to, first_of, was_made_for
from gcbench.runner.records.schema import BITS_PER_MIB
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import Cell, Document, Heading, Line, Summary

WHOLE = ("none", "fp16", "bf16")  # methods that DDP has, too, with overlap
OVERLAPPED = ", overlapped"
NEVER = "never"
Step = tuple[str, Prediction]  # the exchange that it is for
# Of a map: rates in bits per second, of which 95 % carry payload, and numbers of workers.
RATES = [10 ** (7.5 + i / 16) for i in range(60)]
WORKERS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Contender:
    """A method with the kept runs whose curves say how many epochs it takes."""

    label: str
    runs: Sequence[RecordedRun]  # of the table's budget
    lengths: Sequence[Sequence[RecordedRun]]  # of all budgets: their schedules differ in length
    steps: Mapping[float, list[float]]  # by target and seed; none unless every seed reaches it
    forms: Mapping[str, Method]  # by exchange; the first is that of the runs
    wide: Method | None = None  # the first for a model of 32 times the width, if it has one
    overlap: tuple[bool, int] = (False, 0)  # and the bytes of a bucket

    @property
    def own(self) -> Method:
        return next(iter(self.forms.values()))


@dataclass(frozen=True)
class Race:
    """The contenders of a table at a budget, and the computation of their steps."""

    settings: Reach
    score: str
    targets: Sequence[float]
    contenders: Sequence[Contender]  # as the rows of the table
    device: Device

    @property
    def compute(self) -> Compute:
        seconds = self.settings.compute_seconds
        return Compute(seconds, seconds * self.device.backward_share, 1)

    @property
    def overlapped(self) -> list[Contender]:
        """Return the contenders that DDP has, too, with exchanges during the backward pass.

        Unlike ours, it clips sums, so that clipping is no reason to wait for all gradients.
        """
        overlap = True, self.settings.bucket_mib * 2**20
        return [
            replace(one, label=one.label + OVERLAPPED, forms={"": form}, overlap=overlap)
            for one in self.contenders
            if one.own.family in WHOLE and one.own.every == 1
            for form in [replace(one.own, in_buckets=True)]
        ]

    @property
    def baselines(self) -> list[Contender]:
        """Return whole gradients in fp32, in 16 bits, and in 16 bits with overlap, if they ran."""
        by_family = {one.own.family: one for one in (*self.overlapped, *self.contenders[::-1])}
        under = [one for one in self.overlapped if one.own.family != "none"][:1]
        found = [by_family.get("none"), by_family.get("fp16"), *under]
        return [one for one in found if one]

    def step(self, one: Contender, workers: int, link: Link, best: bool = True) -> Step:
        """Return the best exchange for these workers, or that of the runs, and its step."""
        steps = [
            (exchange, predict(method, workers, Cluster(link, link), self.compute, *one.overlap))
            for exchange, method in one.forms.items()
        ]
        return min(steps, key=lambda step: step[1].step_seconds) if best else steps[0]

    def first(self, target: float, workers: int, link: Link) -> First | None:
        """Return who reaches a target first; None if nobody does."""
        times = {}
        for one in (*self.contenders, *self.overlapped):
            if steps := one.steps[target]:
                seconds = self.step(one, workers, link)[1].step_seconds
                times[one.label] = [each * seconds for each in steps]
        return first_of(times)


def race_of(table: Table, rows: Sequence[Row], others: Iterable[Sequence[Row]] = ()) -> Race | None:
    """Return the race of a table's rows; None if it has no targets at their budget.

    A method's epochs to a target are the fewest of all kept lengths: of `rows`, and of `others`,
    the same rows at other budgets. A target for which no dense run was made is left out.
    """
    if table.reach is None or rows[0].budget not in table.reach.targets or table.chooser is None:
        return None
    device, score = read_device(table.reach.device), str(table.chooser.measure)
    lengths = [[row.done for row in same if row.done] for same in zip(rows, *others, strict=True)]
    targets = [
        target
        for target in table.reach.targets[rows[0].budget]
        if any(was_made_for(runs, score, target) for runs in lengths[0])
    ]
    contenders = []
    for row, of_row in zip(rows, lengths, strict=True):
        if row.done:
            steps = {target: _fewest_steps(of_row, score, target) for target in targets}
            config = compose_row(row.spec, row.budget).config
            forms = methods_by_exchange(config, row.spec.title, device, max(WORKERS))
            wide = _wide(config, device)
            contenders.append(Contender(row.spec.title, row.done, of_row, steps, forms, wide))
    return Race(table.reach, score, targets, contenders, device) if contenders else None


def _fewest_steps(
    lengths: Iterable[Sequence[RecordedRun]], score: str, target: float
) -> list[float]:
    """Return the steps to a target by seed, at the length that is there first; none: never."""
    tried = [
        [epochs * (runs[0].result.steps_per_epoch or 0) for epochs in found]
        for runs in lengths
        if (found := epochs_to(runs, score, target))
    ]
    return min(tried, key=fmean, default=[])


def _wide(config: Config, device: Device) -> Method | None:
    """Return a run's method for a model of 32 times the width; None if the model has none."""
    if width := config["model"].get("width"):
        wide = {**config, "model": {**config["model"], "width": 32 * width}}
        return method_of(wide, "", device, {})
    return None


def with_reach(document: Document, race: Race) -> Document:
    """Return a table's page with the time to each target in place of its columns and lines."""
    kinds = [
        (workers, best, network)
        for workers in race.settings.workers
        for best in (False, True)
        for network in race.settings.networks
    ]
    headings = [
        Heading("epochs", "Epochs", better="lower", digits=2, deviation=True),
        Heading("received", "Received", "MiB", "lower", digits=0, deviation=True),
        *(
            Heading(f"{network}_{workers}_{best}", f"{network}, W={workers}{', best' * best}")
            for workers, best, network in kinds
        ),
    ]
    seeds = {line.title: line.seeds for line in document.lines}
    lines = [
        Line(f"{target:g}: {one.label}", None, None, cells, seeds[one.label])
        for target in race.targets
        for one in race.contenders
        for cells in [_cells(race, one, target, kinds)]
    ]
    return replace(document, headings=headings, lines=lines)


def _cells(
    race: Race, one: Contender, target: float, kinds: Sequence[tuple[int, bool, str]]
) -> list[Cell]:
    steps, result = one.steps[target], one.runs[0].result
    if not steps:
        return [Cell(None, None, NEVER)] * (2 + len(kinds))
    received = race.step(one, result.workers or 1, INSTANT, best=False)[1].received_bits
    return [
        Cell(Summary.of([s / (result.steps_per_epoch or 1) for s in steps])),
        Cell(Summary.of([s * received / BITS_PER_MIB for s in steps])),
        *(Cell(None, None, _time(race, one, target, *kind)) for kind in kinds),
    ]


def _time(race: Race, one: Contender, target: float, workers: int, best: bool, network: str) -> str:
    """Return seconds to a target and how many times faster that is than whole gradients."""
    link = read_link("network", network)
    exchange, step = race.step(one, workers, link, best)
    if best and exchange == next(iter(one.forms)):
        return "-"
    ours = fmean(one.steps[target]) * step.step_seconds
    whole = (
        fmean(base.steps[target] or [math.nan]) * race.step(base, workers, link)[1].step_seconds
        for base in race.baselines
    )
    faster = ", ".join(f"{seconds / ours:.2f}" for seconds in whole)
    return f"{exchange + ' ' if best else ''}{format_seconds(ours)}: {faster}"


def link_at(rate: float) -> Link:
    """Return the Ethernet link of a rate, with the latency of those in conf/links.yaml."""
    return Link(0.95 * rate, ethernet_latency(rate))


def map_of(race: Race, target: float) -> list[list[First | None]]:
    """Return who reaches the target first, by number of workers and rate."""
    return [[race.first(target, w, link_at(rate)) for rate in RATES] for w in WORKERS]
