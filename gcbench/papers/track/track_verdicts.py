"""The entries of a track, found among runs, and the verdicts on them and on the baselines.

An entry reaches the target if the mean of its seeds' last test losses is below it, by a one-sided
t test, as in the speedruns of modded-nanogpt. It stands if, too, its workers received fewer bytes
than those of every baseline, with each seed, by the saving that the track asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from gcbench.papers.tables.configs import compose
from gcbench.papers.tables.rows import Row
from gcbench.papers.tables.tables import Table, TableRow
from gcbench.papers.track.track import Track
from gcbench.runner.records.store import RecordedRun, newest
from gcbench.runner.report.document import EMPTY, Cell, Document, Heading
from gcbench.runner.report.listing import add_overrides, overrides_by_run
from gcbench.runner.report.significance import Noise

ENTRY = "entry"  # the row of a track whose runs are its entries


def entries_of(table: Table, runs: Sequence[RecordedRun], budget: str) -> list[Row]:
    """Return a row for each entry among the runs, called by its method and what tells it apart."""
    experiment = f"{table.name}/{ENTRY}"
    mine = [run for run in runs if run.experiment == experiment and run.budget == budget]
    if table.track is None or not mine:
        return []
    rules, entries = compose(experiment, budget).flat, dict[str, list[RecordedRun]]()
    for run in mine:
        if not table.track.breaches(run.flat, rules):
            entries.setdefault(run.result.identity, []).append(run)
    apart = overrides_by_run(
        {same[0]: same[0].result.choices["compressor"] for same in entries.values()}
    )
    rows = []
    for first, overrides in apart.items():
        reported, older = newest(entries[first.result.identity])
        title = add_overrides(first.result.choices["compressor"], overrides)
        rows.append(Row(TableRow(title), budget, runs=reported, duplicates=older))
    return rows


class Verdict(NamedTuple):
    """The verdict of a track's rules on a row of its table."""

    stands: bool
    text: str
    chance: float  # of a mean loss as low as the row's, if the true one were the target
    fewer: Mapping[str, float]  # how many times fewer bytes than other baselines, by title


def judge(track: Track, row: Row, rows: Sequence[Row]) -> Verdict:
    """Return whether a row of a table reaches the target, and with fewer bytes than baselines.

    Baselines only have to reach it.
    """
    losses, received = (_by_seed(name, row, track) for name in ("loss", "received_mib"))
    chance = _chance([track.target - loss for loss in losses.values()])
    fewer, beaten = dict[str, float](), True
    for other in _baselines(rows):
        theirs = _by_seed("received_mib", other, track)
        ratios = [theirs[s] / received[s] for s in received.keys() & theirs.keys()]
        if ratios and other is not row:
            fewer[other.spec.title] = fmean(ratios)
        beaten = beaten and bool(ratios) and min(ratios) * (1 - track.saving) >= 1
    missing = ", ".join(str(seed) for seed in track.seeds if seed not in losses)
    if missing:
        return Verdict(False, f"lacks seed {missing}", chance, fewer)
    if chance >= track.level:
        return Verdict(False, f"does not reach {track.target:g}", chance, fewer)
    if row.spec.experiment:
        return Verdict(True, f"reaches {track.target:g}", chance, fewer)
    lacks = f"does not receive {100 * track.saving:g} % fewer bytes"
    return Verdict(beaten, "stands" if beaten else lacks, chance, fewer)


def _baselines(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.spec.experiment]


def _by_seed(name: str, row: Row, track: Track) -> dict[int, float]:
    return {seed: x for seed, x in row.values_by_seed(name).items() if seed in track.seeds}


def _chance(gains: Sequence[float]) -> float:
    """Return the p value of Student's one-sided t test of a mean gain above 0; 1 if not known.

    Gains that do not vary say nothing of their noise.
    """
    if len({*gains}) < 2 or not all(map(math.isfinite, gains)):
        return 1.0
    error = Noise([dict(enumerate(gains))]).error({"": dict(enumerate(gains))}, {"": 1.0})
    return error.p_above(fmean(gains)) if error else 1.0


def with_verdicts(document: Document, track: Track, rows: Sequence[Row]) -> Document:
    """Return a table's page with what the rules say of its rows, the fewest bytes first."""
    titles = [row.spec.title for row in _baselines(rows)]
    judged = [judge(track, row, rows) for row in rows]
    more = [("chance", "p"), *((title, f"x fewer than {title}") for title in titles)]
    headings = [
        *document.headings,
        *(Heading(key, title) for key, title in [*more, ("", "Verdict")]),
    ]
    lines = []
    for line, one in zip(document.lines, judged, strict=True):
        ratios = [f"{one.fewer[title]:.2f}" if title in one.fewer else EMPTY for title in titles]
        texts = [f"{one.chance:.2g}" if one.chance < 1 else EMPTY, *ratios, one.text]
        lines.append(line._replace(cells=[*line.cells, *(Cell(None, None, t) for t in texts)]))
    received = [fmean(row.values("received_mib") or [math.inf]) for row in rows]
    order = sorted(range(len(rows)), key=received.__getitem__)
    return replace(document, headings=headings, lines=[lines[i] for i in order])
