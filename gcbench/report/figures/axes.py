"""Axis labels: names with units."""

from __future__ import annotations

from collections.abc import Iterable

from gcbench.report.figures.series import Series, workload_of

LABELS = {
    "accuracy": "Test accuracy (%)",
    "best_accuracy": "Best test accuracy (%)",
    "top5_accuracy": "Top-5 test accuracy (%)",
    "tta_accuracy": "Test accuracy by test-time augmentation (%)",
    "error_rate": "Test error (%)",
    "loss": "Test loss",
    "train_loss": "Training loss",
    "perplexity": "Test perplexity",
    "perplexity_of_batches": "Test perplexity, mean of batches",
    "distance": "Distance to the optimum",
    "relative_error": "Relative error, 2-norm",
    "squared_error": "Relative squared error",
    "cosine": "Cosine with the gradient",
    "data_mib_per_epoch": "Sent by a worker in an epoch (MiB)",
    "ratio": "Compression ratio, metered (x fp32)",
    "analytic_ratio": "Compression ratio, by the paper's count (x fp32)",
    "coded_ratio": "Compression ratio, entropy-coded (x fp32)",
    "total_bits": "Sent by a worker (bits)",
    "shannon_total_bits": "Sent by a worker, entropy-coded (bits)",
    "step_milliseconds": "Time per step (ms)",
    "exchange_milliseconds": "Exchange per step (ms)",
    "coding_milliseconds": "Encoding and decoding per step (ms)",
    "link_milliseconds": "Exchange per step on a link, cost model (ms)",
    "share_of_communication": "Communication, share of a step (%)",
    "parameters": "Parameters",
    "images_per_second": "Throughput (samples/s)",
    "epoch": "Epoch",
    "step": "Steps",
    "bits": "Sent by a worker (MiB)",
    "seconds": "Training time (s)",
}
LOSSES = {"loss", "train_loss"}


def label_of(name: str, series: Iterable[Series]) -> str:
    """Return the axis label of the measure `name` for these series.

    The loss of runs with an accuracy or a perplexity is a cross-entropy, in nats. The label says
    so, and also if all runs were scored on validation data.
    """
    runs = [run for one in series for run in one.runs]
    tests = [run.result.test or {} for run in runs]
    entropy = (
        name in LOSSES and tests and all({"accuracy", "perplexity"} & set(test) for test in tests)
    )
    label = LABELS[name] + (" (nats)" if entropy else "")
    if runs and all(workload_of(run).split == "valid" for run in runs):
        label = label.replace("Test ", "Validation ").replace(" test ", " validation ")
    return label
