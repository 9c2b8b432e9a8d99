"""Axis labels: names with units."""

from __future__ import annotations

from collections.abc import Iterable

from gcbench.report.figures.series import Series, workload_of
from gcbench.report.measures import MEASURES
from gcbench.report.rates import VALID

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
