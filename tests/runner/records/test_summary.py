from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from nightly import each
from results import CONFIG, plain_result
from rich.console import Console

from gcbench.runner.records.schema import PHASES
from gcbench.runner.records.summary import ProgressDisplay, print_summary

BITS = {"per_worker_max": 0.0, "per_epoch_mib": 0.0, "dense_per_step": 0.0}
BASE: dict[str, Any] = {"status": "interrupted", "reason": "stopped by [b]SIGINT[/b]"}
RESULT: dict[str, Any] = {
    **BASE,
    "workers": 4,
    "processes": 4,
    "launcher": "local",
    "device": "cuda",
    "parameters": 1000,
    "steps": 10,
    "steps_per_epoch": 10,
    "test": {"accuracy": 91.25, "loss": None, "best_accuracy": 92.0, "best_loss": 0.5},
    "bits_sent": {**BITS, "per_worker": 2**23 * 1500.0, "per_step": 1234567.0, "ratio": 64.2}
    | {"bf16_ratio": 32.1},
    "bits_wire": {**BITS, "per_worker": 0.0, "per_step": 3703701.0, "ratio": 32.1},
    "bits_between_nodes": {"per_node": 0.0, "per_step": 7654321.0, "ratio": 12.5},
    "analytic_ratio": 66.7,
    "peak_mib": 1234.5,
    "state_mib": 7.25,
    "tokens_per_sample": 10,
    "compression_error": {"relative": 0.125, "vnmse": 0.0156, "cosine": 0.99, "samples": 1},
    "seconds": {
        **{phase: {"mean": 0.001, "max": 0.002} for phase in PHASES},
        "step": {"mean": 0.003, "max": 0.004},
    },
}
LINE = {"event": "train", "step": 100, "epoch": 1.5, "loss": 0.25, "lr": 0.1}


def print_to_text(result: dict[str, Any], width: int = 80, verbose: bool = True) -> str:
    console = Console(file=StringIO(), width=width)
    print_summary(plain_result(**result), Path("/outputs/" + "long-name/" * 12), console, verbose)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@each("width", [40, 80, 200])
def test_summary_fits_and_tells_all(width: int) -> None:
    text = print_to_text(RESULT, width)
    assert all(len(line) <= width for line in text.splitlines()[:-1])
    # The path is not wrapped, so that it can be copied.
    assert text.splitlines()[-1] == f"files in {Path('/outputs/' + 'long-name/' * 12)}"
    assert text.isascii() and "\x1b" not in text
    words = " ".join(text.split())
    for fact in (
        "interrupted",
        "[b]SIGINT[/b]",
        "91.25 (best 92)",
        "not finite (best 0.5)",
        "1,500.000 MiB",
        "1,234,567",
    ):
        assert fact in words or width == 40
    for fact in (
        "64.20x fewer than fp32",
        "32.10x fewer than bf16",
        "66.70x by",
        "7,654,321",
        "12.50x",
    ):
        assert fact in words or width == 40
    assert "10,667 samples, 106,667 tokens per second" in words or width == 40  # 4 x 8 in 3 ms
    assert "1,234 MiB in a process at the peak" in words or width == 40
    assert "7.2 MiB of a worker's compressor" in words or width == 40
    assert "3.000 ms" in words and "4.000 ms" in words


def test_a_run_ends_with_eight_lines() -> None:
    """Its times by phase are put together, and those of less than 2 % of a step left out."""
    seconds = {phase: {"mean": 0.010, "max": 0.02} for phase in PHASES} | {
        "data": {"mean": 0.001, "max": 0.001},
        "step": {"mean": 0.0701, "max": 0.08},
    }
    result = {**RESULT, "status": "done", "reason": None, "seconds": seconds}
    lines = print_to_text(result, 80, verbose=False).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "accuracy 91.25 (best 92) on test data",
        "loss not finite (best 0.5) on test data",
        "sent 1,234,567 bits a step, 64.20x fewer than fp32, 32.10x than bf16",
        "received 3,703,701 bits a step, 32.10x fewer than an fp32 all-reduce",
        "error vNMSE 0.0156, cosine 0.99",
        "throughput 456 samples, 4,565 tokens per second",
        "step 70.1 ms: forward+backward 20, coding 20, exchange 20, update 10",
        f"files in {Path('/outputs/' + 'long-name/' * 12)}",
    ]


def test_the_lines_of_a_run_say_what_is_to_be_done() -> None:
    facts = {"compressed_share": 0.25, "target": {"score": "accuracy", "value": 95.0}}
    config = {**CONFIG, "compressor": {"min_size": 10000}, "min_size": 10000}
    more = {**RESULT["bits_sent"], "ratio": 0.5, "bf16_ratio": 0.25}
    result = {**RESULT, **facts, "config": config, "seconds": None, "bits_sent": more}
    words = " ".join(print_to_text(result, 200, verbose=False).split())
    for fact in (
        "status interrupted: stopped by [b]SIGINT[/b]",
        "target accuracy 95 never reached",
        "2x as many as fp32, 4x as many as bf16",
        "compressed 25 % of the gradient's values (tensors of fewer than 10,000 values are sent "
        "whole; type min_size=0)",
        "time no times: too few steps",
    ):
        assert fact in words
    logged = {"logger": "tensorboard", "path": "tensorboard"}
    last = print_to_text({**RESULT, "logged": logged}, verbose=False).splitlines()[-1]
    assert last.startswith("files in /outputs/") and "; TensorBoard: type tensorboard" in last


def test_what_is_received_stands_below_what_is_sent() -> None:
    words = " ".join(print_to_text(RESULT, 200).split())
    assert "received 3,703,701 bits per step, 32.10x fewer than in an fp32 all-reduce" in words
    more = {**RESULT["bits_wire"], "ratio": 0.25}
    assert "4x as many as in" in print_to_text({**RESULT, "bits_wire": more}, 200)
    alone = {**RESULT["bits_wire"], "per_step": 0.0, "ratio": None}
    text = print_to_text({**RESULT, "workers": 1, "bits_wire": alone}, 200)
    assert " ".join(text.split()).count("received nothing: 1 worker") == 1


def test_an_update_without_a_scale_has_no_error() -> None:
    words = " ".join(print_to_text(RESULT, 200).split())
    assert "0.125 relative (|y - x| / |x|), vNMSE 0.0156 (|y - x|^2 / |x|^2), cosine" in words
    error = {"relative": None, "vnmse": None, "cosine": 0.5, "samples": 1, "direction": True}
    words = " ".join(print_to_text({**RESULT, "compression_error": error}, 200).split())
    assert "compression error cosine 0.5; an update without a scale has no relative" in words


def test_scores_of_the_validation_split_are_called_so() -> None:
    assert "test accuracy" in print_to_text(RESULT)
    config = {**CONFIG, "dataset": {**CONFIG["dataset"], "split": "valid"}}
    text = print_to_text({**RESULT, "config": config})
    assert "validation accuracy" in text and "test accuracy" not in text


def test_bits_of_local_steps_are_said_to_be_a_mean() -> None:
    told = {"every": 8, "fragments": 2, "bits_per_exchange": 4938268.0}
    words = " ".join(print_to_text({**RESULT, "estimator": told}, 200).split())
    assert "1,234,567 bits per step" in words
    assert "each of 2 fragments every 8 steps, 4,938,268 bits each time" in words
    assert "bits per step are the mean over all steps" in words
    assert "exchanged" not in print_to_text(RESULT, 200)


@each(("workers", "words"), [(4, "no times: too few steps"), (8, "no times: virtual workers")])
def test_summary_says_why_there_are_no_times(workers: int, words: str) -> None:
    assert words in print_to_text({**RESULT, "workers": workers, "seconds": None})


def test_summary_says_whose_times_they_are() -> None:
    seconds = {**RESULT["seconds"], "hidden_exchange": {"mean": 0.0, "max": 0.0}}
    network = {"emulated": True, "bandwidth": "1gbit", "latency": "50us"}
    assert "exchanges emulated as on 1gbit, 50us" in print_to_text(
        {
            **RESULT,
            "config": {**CONFIG, "network": {"bandwidth": "1gbit", "latency": "50us"}},
            "seconds": seconds,
            "network": network,
        }
    )
    plain = print_to_text(
        {**RESULT, "seconds": seconds, "network": {"emulated": False, "link": None}}
    )
    assert "emulated" not in plain and "hidden" not in plain
    hidden = {**seconds, "hidden_exchange": {"mean": 0.007, "max": 0.008}}
    assert "hidden exchange" in print_to_text(
        {**RESULT, "seconds": hidden}
    ) and "7.000 ms" in print_to_text({**RESULT, "seconds": hidden})


def test_summary_of_a_run_that_never_began() -> None:
    text = print_to_text(BASE)
    assert "interrupted" in text and "test" not in text and "time" not in text


def test_progress_is_a_line_a_record_without_a_terminal() -> None:
    console = Console(file=StringIO(), width=20)
    with ProgressDisplay(400, console, enabled=True) as display:
        display.show(LINE)
        display.show(
            {"event": "test", "step": 100, "epoch": 1.5, "accuracy": 50.0, "loss": float("nan")}
        )
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [
        "train step 100/400 epoch 1.50: loss 0.25, lr 0.1",
        "test step 100/400 epoch 1.50: accuracy 50, loss nan",
    ]


def test_progress_is_a_bar_on_a_terminal() -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True)
    with ProgressDisplay(400, console, enabled=True) as display:
        display.show(LINE)
    assert isinstance(console.file, StringIO)
    assert "100/400" in console.file.getvalue() and "loss 0.25" in console.file.getvalue()


@each("terminal", [True, False])
def test_other_processes_show_nothing(terminal: bool) -> None:
    console = Console(file=StringIO(), force_terminal=terminal)
    with ProgressDisplay(400, console, enabled=False) as display:
        display.show(LINE)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue() == ""
