"""Time to a score: epochs of kept curves times predicted steps, on any link with any workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from gcbench.comm.network import Link
from gcbench.config import ConfigError
from gcbench.identity import CHOICE_GROUPS
from gcbench.launch.instantiate import make_compressor
from gcbench.predict.devices import Device, read_device
from gcbench.predict.links import ethernet_latency, read_link
from gcbench.predict.model import Cluster, Compute, Method, Prediction, predict
from gcbench.predict.subject import facts_of, make_method, shapes_of_model
from gcbench.predict.target import epochs_to
from gcbench.predict.units import format_seconds
from gcbench.records.schema import BITS_PER_MIB
from gcbench.records.store import RecordedRun
from gcbench.report.configs import compose_row
from gcbench.report.document import Cell, Document, Heading, Line, Summary
from gcbench.report.rows import Row
from gcbench.report.tables import Reach, Table

EXCHANGES = ("gather", "scatter", "scatter_coded", "sum")
WHOLE = ("none", "fp16", "bf16")  # methods that DDP has, too, with overlap
OVERLAPPED = ", overlapped"
NEVER = "never"
# Of a map: rates in bits per second, of which 95 % carry payload, and numbers of workers.
RATES = [10 ** (7.5 + i / 16) for i in range(60)]
WORKERS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Contender:
    """A method with the kept runs whose curves say how many epochs it takes."""

    label: str
    runs: Sequence[RecordedRun]
    steps: Mapping[float, list[float]]  # by target and seed; none unless every seed reaches it
    forms: Mapping[str, Method]  # by exchange; the first is that of the runs
    overlap: bool = False

    @property
    def own(self) -> Method:
        return next(iter(self.forms.values()))


class Step(NamedTuple):
    """A predicted step, and the exchange that it is for."""

    exchange: str
    prediction: Prediction


class First(NamedTuple):
    """The contender that reaches a target first on a link."""

    label: str
    seconds: float
    margin: float  # the next contender's mean time over its own
    next_label: str
    sure: bool  # whether its slowest seed is faster than any seed of the others


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
        return [
            replace(
                one,
                label=one.label + OVERLAPPED,
                forms={"": replace(one.own, in_buckets=True)},
                overlap=True,
            )
            for one in self.contenders
            if one.own.family in WHOLE and one.own.every == 1
        ]

    def step(self, one: Contender, workers: int, link: Link, best: bool = True) -> Step:
        """Return a step with the best exchange for these workers, or with that of the runs."""
        cluster, whole = Cluster(link, link), self.settings.bucket_mib * 2**20
        steps = [
            Step(exchange, predict(method, workers, cluster, self.compute, one.overlap, whole))
            for exchange, method in one.forms.items()
        ]
        return min(steps, key=lambda step: step.prediction.step_seconds) if best else steps[0]

    def first(self, target: float, workers: int, link: Link) -> First | None:
        """Return who reaches a target first; None if nobody does."""
        ranked = []
        for one in (*self.contenders, *self.overlapped):
            if steps := one.steps[target]:
                each = self.step(one, workers, link).prediction.step_seconds
                ranked.append((each * fmean(steps), one.label, each, steps))
        ranked.sort(key=lambda entry: entry[0])
        if not ranked:
            return None
        (mean, label, each, steps), *others = ranked
        fastest = min((e * min(s) for _, _, e, s in others), default=float("inf"))
        after = others[0] if others else (float("inf"), "", 0.0, [])
        return First(label, mean, after[0] / mean, after[1], each * max(steps) < fastest)


def race_of(table: Table, rows: Sequence[Row]) -> Race | None:
    """Return the race of a table's rows; None if it has no targets at their budget."""
    if table.reach is None or rows[0].budget not in table.reach.targets or table.chooser is None:
        return None
    device = read_device(table.reach.device)
    score, targets = str(table.chooser.measure), table.reach.targets[rows[0].budget]
    contenders = [
        Contender(
            row.spec.title,
            row.done,
            {
                target: [
                    epochs * (row.done[0].result.steps_per_epoch or 0)
                    for epochs in epochs_to(row.done, score, target)
                ]
                for target in targets
            },
            _forms(row, device),
        )
        for row in rows
        if row.done
    ]
    return Race(table.reach, score, targets, contenders, device)


def _forms(row: Row, device: Device) -> dict[str, Method]:
    """Return a row's method by the exchanges that it can have, its own first."""
    config = compose_row(row.spec, row.budget).config
    model, dataset, family = (config["choices"][group] for group in CHOICE_GROUPS)
    shapes = shapes_of_model(config["model"], facts_of(model, dataset))
    node, own = config["compressor"], config["compressor"].get("exchange", "")
    forms = {}
    for exchange in dict.fromkeys((own, *EXCHANGES)) if own else ("",):
        try:
            compressor = make_compressor(node | ({"exchange": exchange} if own else {}), quiet=True)
            method = make_method(row.spec.title, family, compressor, shapes, device)
            method.messages(max(WORKERS))
        except ValueError:  # the method has no such exchange
            continue
        forms[exchange] = replace(method, every=config["estimator"].get("every", 1))
    return forms


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
        Line(
            f"{target:g}: {one.label}",
            None,
            None,
            _cells(race, one, target, kinds),
            seeds[one.label],
        )
        for target in race.targets
        for one in race.contenders
    ]
    return replace(document, headings=headings, lines=lines)


def _cells(
    race: Race, one: Contender, target: float, kinds: Sequence[tuple[int, bool, str]]
) -> list[Cell]:
    steps = one.steps[target]
    if not steps:
        return [Cell(None, None, NEVER)] * (2 + len(kinds))
    result = one.runs[0].result
    received = race.step(one, result.workers or 1, Link(1.0), best=False).prediction.received_bits
    return [
        Cell(Summary.of([s / (result.steps_per_epoch or 1) for s in steps])),
        Cell(Summary.of([s * received / BITS_PER_MIB for s in steps])),
        *(
            Cell(None, None, _time(race, one, target, workers, read_link("network", network), best))
            for workers, best, network in kinds
        ),
    ]


def _time(race: Race, one: Contender, target: float, workers: int, link: Link, best: bool) -> str:
    """Return seconds to a target and how many times faster that is than whole gradients."""
    exchange, step = race.step(one, workers, link, best)
    if best and exchange == next(iter(one.forms)):
        return "-"
    ours = fmean(one.steps[target]) * step.step_seconds
    faster = ", ".join(
        f"{fmean(base.steps[target]) * whole.prediction.step_seconds / ours:.2f}"
        if base.steps[target]
        else NEVER
        for base in baselines(race)
        for whole in [race.step(base, workers, link)]
    )
    return f"{exchange + ' ' if best else ''}{format_seconds(ours)}: {faster}"


def baselines(race: Race) -> list[Contender]:
    """Return whole gradients in fp32, in 16 bits, and in 16 bits with overlap."""
    families = {one.own.family: one for one in race.overlapped}
    half = families.get("bf16") or families.get("fp16")
    if "none" not in families or half is None:
        raise ConfigError("a table of times to a score needs rows without compression and fp16")
    return [*(replace(one, overlap=False) for one in (families["none"], half)), half]


def link_at(rate: float) -> Link:
    """Return the Ethernet link of a rate, with the latency of those in conf/links.yaml."""
    return Link(0.95 * rate, ethernet_latency(rate))


def map_of(race: Race, target: float) -> list[list[First | None]]:
    """Return who reaches the target first, by number of workers and rate."""
    return [[race.first(target, w, link_at(rate)) for rate in RATES] for w in WORKERS]


def as_json(race: Race, cells: Mapping[float, list[list[First | None]]]) -> dict[str, Any]:
    """Return all that the page and the map show."""
    return {
        "score": race.score,
        "compute_seconds": race.settings.compute_seconds,
        "device": race.settings.device,
        "methods": list(_entries(race)),
        "rates": [_round(rate) for rate in RATES],
        "workers": WORKERS,
        "maps": {  # by target, number of workers and rate
            f"{target:g}": [
                [
                    cell and (cell.label, _round(cell.margin), cell.next_label, cell.sure)
                    for cell in r
                ]
                for r in rows
            ]
            for target, rows in cells.items()
        },
    }


def _entries(race: Race) -> Iterator[dict[str, Any]]:
    """Yield each method's steps by target and seed, and the steps that are predicted."""
    for one in race.contenders:
        steps = [
            (network, workers, best, race.step(one, workers, read_link("network", network), best))
            for network in race.settings.networks
            for workers in race.settings.workers
            for best in (False, True)
        ]
        yield {
            "method": one.label,
            "steps": {
                f"{target:g}": [*map(_round, by_seed)] for target, by_seed in one.steps.items()
            },
            "links": [
                {
                    "network": network,
                    "workers": workers,
                    "exchange": step.exchange,
                    "best": best,
                    "step_seconds": _round(step.prediction.step_seconds),
                    "exchange_seconds": _round(step.prediction.exchange_seconds),
                    "codec_seconds": _round(step.prediction.codec_seconds),
                    "received_bits": _round(step.prediction.received_bits),
                }
                for network, workers, best, step in steps
            ],
        }


def _round(value: float) -> float:
    return float(f"{value:.5g}")
