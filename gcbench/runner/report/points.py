"""The points of a sweep side by side: scores and what they cost, p values, and time to a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from gcbench.core.share import advice_on_share, share_in_words
from gcbench.runner.records.metrics import MAIN_SCORES, find_target
from gcbench.runner.records.schema import Target
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import Cell, Document, Heading, Line, Section, Summary
from gcbench.runner.report.figures.series import (
    EXECUTED,
    Drawn,
    Series,
    Workload,
    is_partly_compressed,
    series_by_workload,
)
from gcbench.runner.report.measures import measure_by_seed
from gcbench.runner.report.significance import Noise, holm


class Column(NamedTuple):
    """A column of the table, with a cell for each point."""

    heading: Heading
    cells: Sequence[Cell]


COLUMNS = tuple(
    Heading(key, title, unit, digits=digits, deviation=True, counted=False)
    for key, title, unit, digits in (
        ("accuracy", "accuracy", "%", 2),
        ("perplexity", "perplexity", None, None),
        ("distance", "distance", None, None),
        ("loss", "test loss", None, None),
        ("ratio", "ratio", "x fp32", 1),
        ("bf16_ratio", "ratio", "x bf16", 1),
        ("received_ratio", "received", "x fp32 all-reduce", 1),
        ("data_mib_per_epoch", "sent", "MiB an epoch", None),
        ("step_milliseconds", "step", "ms", None),
    )
)


def compare_points(runs: Sequence[RecordedRun], target: float | None = None) -> Iterator[Document]:
    """Yield one table per workload of the runs, with one row per configuration over its seeds.

    A row is named by its method and the knobs in which it differs from the others. `target` is a
    score whose time is shown, by default that which runs had as trainer.target.
    """
    for workload, drawn in series_by_workload(runs, EXECUTED).items():
        if drawn.series:
            yield _document(workload, drawn, target)


def _document(workload: Workload, drawn: Drawn, target: float | None) -> Document:
    series = drawn.series
    columns = [Column(h, [_cell(s.values(h.key)) for s in series]) for h in COLUMNS]
    columns = [column for column in columns if any(cell.ours for cell in column.cells)]
    notes = [*drawn.notes]
    score = next((n for n in MAIN_SCORES if any(c.heading.key == n for c in columns)), None)
    if score and (p_values := _p_values(score, series)):
        after = 1 + next(i for i, c in enumerate(columns) if c.heading.key == score)
        columns.insert(after, Column(Heading("p", "p", digits=3, counted=False), p_values))
        notes.append(
            f"p: the chance that the {score} is this far from that of {series[0].label} by seeds "
            "alone (two-sided t test, adjusted by Holm)."
        )
    columns += _times_to_target(series, target)
    if partly := [s for s in series if is_partly_compressed(s)]:
        share = Heading("compressed", "compressed", "% of values", digits=1, counted=False)
        columns.append(Column(share, [_cell(s.values("compressed")) for s in series]))
        notes += _barely_compressed(partly)
    return Document(
        workload.name,
        workload.title,
        ["Mean +- standard deviation over seeds."],
        [column.heading for column in columns],
        [
            Line(
                s.label,
                None,
                None,
                [column.cells[i] for column in columns],
                ", ".join(str(run.seed) for run in s.runs),
            )
            for i, s in enumerate(series)
        ],
        [Section("Notes", notes)] if notes else [],
    )


def _cell(values: Sequence[float]) -> Cell:
    return Cell(Summary.of(values) if values else None)


def _p_values(score: str, series: Sequence[Series]) -> list[Cell]:
    """Return the p value of each row's difference from the first; none if no spread is known."""
    rows = {str(i): measure_by_seed(score, one.runs) for i, one in enumerate(series)}
    if not rows["0"] or all(len(row) < 2 for row in rows.values()):
        return []
    noise, known = Noise([*rows.values()]), dict[str, float]()
    for name, row in rows.items():
        error = noise.error(rows, {"0": -1, name: 1}) if row and name != "0" else None
        if error is not None and error.standard > 0:  # seeds that end alike show no spread
            apart = abs(fmean(row.values()) - fmean(rows["0"].values()))
            known[name] = min(1.0, 2 * error.p_above(apart))
    adjusted = dict(zip(known, holm([*known.values()]), strict=True))
    return [_cell([adjusted[name]] if name in adjusted else []) for name in rows] * bool(known)


def _times_to_target(series: Sequence[Series], target: float | None) -> Iterator[Column]:
    """Yield columns of the epochs and the seconds until tests first reached a target."""
    by_row = [[_target_of(run, target) for run in one.runs] for one in series]
    asked = {f"to {one.score} {one.value:g}" for row in by_row for one in row if one}
    for key, unit in (("epoch", "epochs"), ("seconds", "s")):
        cells = [_reached(row, key) for row in by_row]
        if any(cell.ours for cell in cells) or (asked and key == "epoch"):
            title = asked.pop() if len(asked) == 1 else "to the target"
            asked.add(title)
            heading = Heading(f"target_{key}", title, unit, deviation=True, counted=False)
            yield Column(heading, cells)


def _target_of(run: RecordedRun, target: float | None) -> Target | None:
    if target is None or (run.result.target and run.result.target.value == target):
        return run.result.target
    return find_target([line for line in run.read_metrics() if line["event"] == "test"], target)


def _reached(targets: Sequence[Target | None], key: str) -> Cell:
    """Return the mean of what it took, or how many of the seeds reached the target at all."""
    asked = [one for one in targets if one is not None]
    values = [value for one in asked if (value := getattr(one, key)) is not None]
    reached = sum(one.step is not None for one in asked)
    if reached == len(asked):
        return _cell(values)
    return Cell(instead=f"{reached} of {len(asked)}" if reached else "never")


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
