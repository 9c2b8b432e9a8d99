"""Summaries over tests and workers, as result.json has them."""

from __future__ import annotations

import math

import pytest
from nightly import each
from results import result_of

from gcbench.runner.records import result
from gcbench.runner.records.result import count_bits, count_bits_between_nodes
from gcbench.runner.records.schema import Result


def test_the_best_score_is_the_highest_accuracy_and_the_lowest_loss() -> None:
    tests = [
        {
            "event": "test",
            "step": 1,
            "epoch": 0.5,
            "accuracy": 60,
            "top5_accuracy": 80,
            "loss": 2.0,
        },
        {
            "event": "test",
            "step": 2,
            "epoch": 1.0,
            "accuracy": 90,
            "top5_accuracy": 95,
            "loss": 0.5,
        },
        {
            "event": "test",
            "step": 3,
            "epoch": 1.5,
            "accuracy": 70,
            "top5_accuracy": 85,
            "loss": 1.0,
        },
    ]
    last = {"accuracy": 70, "top5_accuracy": 85, "loss": 1.0}
    best = {"best_accuracy": 90, "best_top5_accuracy": 95, "best_loss": 0.5}
    assert result.summarize_tests(tests) == {**last, **best}
    assert result.summarize_tests([]) is None


def test_perplexities_and_distances_are_best_when_they_are_low() -> None:
    scores = ("perplexity", "perplexity_of_batches", "distance")
    tests = [dict.fromkeys(scores, value) for value in (3.0, 1.0, 2.0)]
    summary = result.summarize_tests(tests)
    assert summary is not None
    assert [summary[f"best_{name}"] for name in scores] == [1.0] * 3


@each("losses", [(math.nan, 2.0, 3.0), (3.0, math.nan, 2.0)])
def test_a_loss_that_is_no_number_is_not_the_best(losses: tuple[float, ...]) -> None:
    summary = result.summarize_tests([{"loss": loss} for loss in losses])
    assert summary == {"loss": losses[-1], "best_loss": 2.0}
    only = result.summarize_tests([{"loss": math.nan}])
    assert only is not None and math.isnan(only["best_loss"] or 0.0)


def test_bits_are_means_over_workers_and_the_most_of_any() -> None:
    summary = count_bits([100, 700, 400], steps=4, steps_per_epoch=10, dense=1000)
    assert (summary.per_worker, summary.per_worker_max, summary.per_step) == (400, 700, 100)
    assert summary.per_epoch_mib == pytest.approx(100 * 10 / 8 / 2**20)
    assert (summary.dense_per_step, summary.ratio) == (1000, 10)
    assert count_bits([0.0], steps=0, steps_per_epoch=10, dense=1000).ratio is None


def test_bits_between_nodes_are_means_over_nodes() -> None:
    summary = count_bits_between_nodes([100, 300], steps=2, dense=1000)
    assert summary.model_dump() == {"per_node": 200, "per_step": 100, "ratio": 10}


def test_scores_of_augmented_images_are_best_when_they_are_high() -> None:
    names = ("accuracy", "top5_accuracy", "tta_accuracy", "tta_top5_accuracy")
    summary = result.summarize_tests([dict.fromkeys(names, value) for value in (60, 90, 70)])
    assert summary is not None
    assert [summary[f"best_{name}"] for name in names] == [90] * 4


def test_a_result_without_the_seconds_of_a_phase_is_refused() -> None:
    whole = result_of("powersgd/table4/sgd")
    assert Result.parse(whole).samples_per_second
    for spoilt in ({}, {"data": {"mean": 1.0, "max": 1.0}}):
        with pytest.raises(ValueError, match=r"without seconds\."):
            Result.parse({**whole, "seconds": spoilt})
