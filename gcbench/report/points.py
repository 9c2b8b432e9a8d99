"""Compare the points of a sweep: a table of their knobs and results, and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from matplotlib import rc_context

from gcbench.console import TextTable
from gcbench.drawing import RC, save
from gcbench.records.store import RecordedRun
from gcbench.records.summary import advice_on_share, share_in_words
from gcbench.report.document import EMPTY, Heading, Summary, format_summary
from gcbench.report.figures.curves import draw_curves
from gcbench.report.figures.series import Drawn, Series, Workload, series_by_workload
from gcbench.report.figures.tradeoff import draw_accuracy_ratio, score_of

EXECUTED = attrgetter("executed")  # a sweep may vary only what changes times
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


@rc_context(RC)
def draw_points(runs: Sequence[RecordedRun], folder: Path, suffix: str) -> list[Path]:
    """Draw the score over the compression ratio, and return the files.

    There is one picture per workload that has several points. If all of them have the same ratio,
    the score is drawn over epochs.
    """
    files: list[Path] = []
    for workload, drawn in series_by_workload(runs, EXECUTED).items():
        score = score_of(drawn.series)
        if score and len(drawn.series) > 1:
            by_ratio = draw_accuracy_ratio({workload.title: drawn})
            if figure := by_ratio or draw_curves(drawn, score, "epoch"):
                files += save(figure, folder / f"{workload.name}-{suffix}")
    return files
