"""Test scores, and what metrics.jsonl says between tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence import run
from torch.nn.functional import cross_entropy

from gcbench.runner.data.digits import digits
from gcbench.runner.launch.memory import give_back_freed_memory, peak_bytes, reset_peak
from gcbench.runner.models.mlp import MLP
from gcbench.runner.records.schema import Result
from gcbench.runner.report.measures import measure
from gcbench.runner.train.scores import MANY_CLASSES, scores_of, summary_of

OVERRIDES = [
    *"trainer.launcher=virtual trainer.max_steps=6 trainer.log_every=3".split(),
    "trainer.error_every=2",
]


def test_the_right_class_among_the_five_likeliest_counts_where_there_are_many() -> None:
    outputs = torch.randn(64, MANY_CLASSES)
    # The right class has the highest score for 1/8 of the samples, and is in the top 5 for 5/8.
    ranks = torch.arange(64) % 8
    targets = outputs.argsort(descending=True)[torch.arange(64), ranks]
    halves = [
        torch.stack(scores_of("classification", *half))
        for half in zip(outputs.chunk(2), targets.chunk(2), strict=True)
    ]
    summary = summary_of("classification", torch.stack(halves), MANY_CLASSES)
    assert summary["accuracy"] == 12.5 and summary["top5_accuracy"] == 62.5
    assert "top5_accuracy" not in summary_of("classification", torch.stack(halves), 10)


def test_perplexity_is_that_of_a_word_however_words_are_shared_out_over_batches() -> None:
    """The two batches have 12 and 4 words: the mean over words is not that over batches."""
    outputs, targets = torch.randn(4, 4, 7), torch.randint(7, (4, 4))
    windows = [(outputs[:3], targets[:3]), (outputs[3:], targets[3:])]
    batches = torch.stack([torch.stack(scores_of("language", *window)) for window in windows])
    summary = summary_of("language", batches, 7)
    losses = -outputs.log_softmax(-1).gather(2, targets.unsqueeze(2)).squeeze(2)
    assert summary["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert summary["perplexity"] == pytest.approx(float(losses.mean().exp()), rel=1e-5)
    means = torch.stack([losses[:3].mean(), losses[3:].mean()])
    assert summary["perplexity_of_batches"] == pytest.approx(float(means.exp().mean()), rel=1e-5)


def _views_by_numpy(image: np.ndarray) -> list[np.ndarray]:
    """Return the eight views of test-time augmentation, in which the unshifted ones occur twice."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), mode="reflect")
    shifts = [padded[:, y : y + 8, y : y + 8] for y in (0, 1, 1, 2)]
    return [side for view in shifts for side in (view, view[:, :, ::-1])]


def test_augmented_scores_are_by_the_mean_outputs_of_six_views(tmp_path: Path) -> None:
    result = run(tmp_path, *OVERRIDES, "trainer.tta=true", "trainer.eval_batch_size=100")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    model = MLP((1, 8, 8), 10, widths=[16])
    model.load_state_dict(weights)
    images, targets = digits().test_batch(0, 10_000)
    views = torch.from_numpy(np.stack([np.stack(_views_by_numpy(x)) for x in images.numpy()]))
    with torch.no_grad():
        outputs = model.eval()(views.flatten(0, 1)).view(len(images), 8, 10).mean(1)
    test = result["test"]
    right = (outputs.argmax(1) == targets).float().mean().item()
    assert test["tta_accuracy"] == pytest.approx(100 * right)
    assert test["tta_loss"] == pytest.approx(float(cross_entropy(outputs, targets)), rel=1e-5)
    assert test["tta_loss"] != test["loss"] and measure("tta_accuracy", Result.parse(result))
    tests = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in tests if "tta_accuracy" in line] == [6]


def test_an_augmented_test_changes_no_other_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = [*OVERRIDES, "trainer.epochs=2", "trainer.max_steps=null"]
    plain = run(tmp_path / "plain", *overrides)
    augmented = run(tmp_path / "augmented", *overrides, "trainer.tta=true")
    assert plain["identity"] == augmented["identity"]
    with caplog.at_level("INFO", "gcbench"):
        run(tmp_path / "augmented", *overrides, "trainer.tta=true")
        run(tmp_path / "plain", *overrides, "trainer.tta=true")
        run(tmp_path / "plain", *overrides, "trainer.tta=true", in_sweep=True)
    said = [r.getMessage() for r in caplog.records if "was finished" in r.getMessage()]
    lacks = f"{tmp_path}/plain was finished without test-time augmentation; type rerun=true"
    assert [lacks in sentence for sentence in said] == [False, False, True, True]
    assert plain["test"].items() <= augmented["test"].items()
    assert augmented["test"].keys() - plain["test"].keys() == {"tta_accuracy", "tta_loss"}


def test_a_run_says_where_its_tests_first_reached_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ("trainer.workers=1", "trainer.epochs=3", "trainer.log_every=50")
    plain = run(tmp_path, *overrides)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    tests = [line for line in lines if line["event"] == "test"]
    scores = [line["accuracy"] for line in tests]
    assert scores == sorted(scores) and len(scores) == 3 and plain["target"] is None
    target = (scores[0] + 3 * scores[1]) / 4
    # The finished run is shown with it, and one that has it from the start is the same run.
    for where in ("again", "anew"):
        directory = tmp_path if where == "again" else tmp_path / where
        run(directory, *overrides, f"trainer.target={target}")
        said = " ".join(capsys.readouterr().out.split())
        assert f"accuracy {target:g} first reached at epoch 1.75, step " in said, where
    result = run(tmp_path / "anew", *overrides, f"trainer.target={target}")
    assert [result[key] for key in ("identity", "test")] == [plain["identity"], plain["test"]]
    assert result["target"]["step"] == pytest.approx(1.75 * result["steps_per_epoch"])
    assert 0 < result["target"]["seconds"] < result["seconds"]["step"]["mean"] * result["steps"]
    missed = run(tmp_path / "missed", *overrides[:1], "trainer.target=99.9", "trainer.max_steps=4")
    assert missed["target"] == {"score": "accuracy", "value": 99.9} | dict.fromkeys(
        ("step", "epoch", "received_bits", "seconds")
    )
    assert "target accuracy 99.9 never reached" in " ".join(capsys.readouterr().out.split())


def test_bits_received_so_far_are_those_of_the_whole_run_at_its_end(tmp_path: Path) -> None:
    result = run(tmp_path, *OVERRIDES, "trainer.workers=4", "min_size=0", "trainer.target=0")
    assert result["target"]["received_bits"] == result["bits_wire"]["per_worker"] > 0
    assert result["bits_wire"]["per_worker"] == 3 * result["bits_sent"]["per_worker"]
    assert result["target"]["epoch"] == result["epochs"] and result["target"]["seconds"] is None


def test_distance_to_the_weights_that_made_the_targets(tmp_path: Path) -> None:
    overrides = [
        *OVERRIDES,
        "model=linear",
        "model.bias=false",
        "dataset=syn256",
        "optimizer.lr=0.02",
        "optimizer.momentum=0",
    ]
    short = run(tmp_path / "short", *overrides, "schedule=constant", "compressor=none")
    long = run(
        tmp_path / "long",
        *overrides,
        *"schedule=constant compressor=none trainer.max_steps=60".split(),
    )
    assert 0 < long["test"]["distance"] < short["test"]["distance"] < 1.5


def test_metrics_hold_the_error_of_compression_step_by_step(tmp_path: Path) -> None:
    result = run(tmp_path, *OVERRIDES)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    samples = [line for line in lines if line["event"] == "compression"]
    assert [line["step"] for line in samples] == [1, 3, 5]
    assert sum(line["relative"] for line in samples) / 3 == pytest.approx(
        result["compression_error"]["relative"]
    )
    assert all(line["seconds"] is None for line in lines if line["event"] == "train"), (
        "virtual workers have no times"
    )


def test_time_is_that_of_steps_so_far(tmp_path: Path) -> None:
    result = run(tmp_path, "trainer.workers=1", "trainer.max_steps=9", "trainer.log_every=3")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if line["event"] == "train"]
    assert seconds[0] == 0 < seconds[1] < seconds[2], "three steps of warm-up do not count"
    assert seconds[2] == pytest.approx(6 * result["seconds"]["step"]["mean"])


def test_ratios_are_against_fp32_gradients_whatever_the_parameters_are(tmp_path: Path) -> None:
    overrides = [
        *OVERRIDES,
        "model=gpt_small",
        "model.width=16",
        "model.layers=1",
        "model.context=8",
        "model.vocabulary=12",
        "dataset._target_=own_data.text",
        "trainer.eval_batch_size=4",
    ]
    plain = run(tmp_path / "fp32", *overrides, "compressor=bf16")
    half = run(tmp_path / "bf16", *overrides, "compressor=bf16", "model.parameters=bf16")
    assert plain["bits_sent"]["ratio"] == half["bits_sent"]["ratio"] == 2
    assert half["bits_sent"]["dense_per_step"] == 32 * half["parameters"]
    by_older_count = {"dense_per_step": 16 * half["parameters"], "ratio": 1}
    older = {**half, "bits_sent": half["bits_sent"] | by_older_count}
    for result in (half, older):
        assert measure("ratio", Result.parse(result)) == 2, "reports read the counts"
    assert half["test"]["loss"] != plain["test"]["loss"]
    assert half["test"]["loss"] == pytest.approx(plain["test"]["loss"], abs=0.1)


def test_bits_of_the_log_are_means_over_workers(tmp_path: Path) -> None:
    """The workers' codes differ in length."""
    result = run(tmp_path, *OVERRIDES, "trainer.workers=3", "min_size=0", "code=elias_dense")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [line["bits_sent_per_worker"] for line in lines if line["event"] == "train"]
    assert logged[-1] == result["bits_sent"]["per_worker"] < result["bits_sent"]["per_worker_max"]


def test_tests_come_every_so_many_epochs_and_at_the_end(tmp_path: Path) -> None:
    """1437 samples make five steps per epoch."""
    every = ["trainer.eval_every=2", "trainer.epochs=5", "trainer.batch_size=240"]
    run(tmp_path, "trainer.launcher=virtual", "trainer.workers=1", *every)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    tests = [(line["step"], line["epoch"]) for line in lines if line["event"] == "test"]
    assert tests == [(10, 2), (20, 4), (25, 5)]


def test_a_text_begins_anew_with_every_epoch(tmp_path: Path) -> None:
    """As the weights do not move, all epochs have the same loss."""
    text = ["model=lstm_small", "model.vocabulary=12", "dataset._target_=own_data.text"]
    still = ["optimizer.lr=1e-30", "trainer.batch_size=100", "trainer.epochs=2"]
    typed = [*text, *still, "trainer.workers=1", "trainer.log_every=4", "trainer.eval_every=null"]
    result = run(tmp_path, "trainer.launcher=virtual", "compressor=onebit", *typed)
    assert result["steps_per_epoch"] == 4
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, second = [line["loss"] for line in lines if line["event"] == "train"]
    assert first == second
    batch = 100 / result["seconds"]["step"]["mean"]
    assert (result["samples_per_second"], result["tokens_per_second"]) == (batch, 8 * batch)
    residual = 4 * result["parameters"] / 2**20
    assert 0.9 * residual < result["state_mib"] <= 1.1 * residual < result["peak_mib"] < 2**14


def test_a_worker_of_many_in_a_process_remembers_as_much_as_alone(tmp_path: Path) -> None:
    short = ["trainer.launcher=virtual", "compressor=top_k", "trainer.max_steps=1"]
    alone, four = (run(tmp_path / n, *short, f"trainer.workers={n}")["state_mib"] for n in "14")
    assert 0 < alone == four


def test_the_peak_is_of_this_run() -> None:
    """A sweep's earlier row may have taken more, in the same process."""
    device = torch.device("cpu")
    torch.ones(2**27).sum()  # 512 MiB
    before = peak_bytes(device)
    give_back_freed_memory()
    reset_peak(device)
    assert peak_bytes(device) < before - 2**28
