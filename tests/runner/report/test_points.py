"""The table of a sweep: p values against its first row, and time to a target."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from results import result_of

from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import Document, text_tables
from gcbench.runner.report.points import compare_points
from gcbench.runner.report.significance import Noise

SGD, RANK = "powersgd/table4/sgd", "powersgd/table4/rank_2"


def run_of(row: str, seed: int, accuracies: list[float], **facts: Any) -> RecordedRun:
    """Return a run with a test after every epoch, of which the last is its score."""
    result = result_of(row, seed=seed, accuracy=accuracies[-1]) | facts
    result["experiment"] = None
    tests = [
        {"event": "test", "step": 10 * i, "epoch": float(i), "accuracy": accuracy, "seconds": i / 4}
        for i, accuracy in enumerate(accuracies, start=1)
    ]
    return RecordedRun(Result.parse(result), f"{row}-{seed}", partial(list, tests))


def table(runs: list[RecordedRun], target: float | None = None) -> tuple[Document, dict[str, Any]]:
    (document,) = compare_points(runs, target)
    (text,) = text_tables(document)
    rows = {row[0]: dict(zip(text.headings, row, strict=True)) for row in text.rows}
    return document, rows


def test_a_row_has_a_p_value_against_the_first() -> None:
    """Student's t of means 90 and 93 with three seeds each, whose variances are both 1."""
    runs = [run_of(SGD, seed, [88.0 + seed]) for seed in (1, 2, 3)]
    runs += [run_of(RANK, seed, [91.0 + seed - 2 * (seed == 2)]) for seed in (1, 2, 3)]
    document, rows = table(runs)
    first, second = rows.values()
    assert first["p"] == "-"
    from scipy.stats import ttest_ind

    expected = ttest_ind([89.0, 90.0, 91.0], [92.0, 91.0, 94.0]).pvalue
    assert float(second["p"]) == pytest.approx(expected, abs=5e-4)
    assert "p: the chance that the accuracy is this far from that of none by" in str(document)
    assert [heading.key for heading in document.headings][:2] == ["accuracy", "p"]


def test_one_seed_each_has_no_p_value() -> None:
    document, rows = table([run_of(SGD, 1, [90.0]), run_of(RANK, 1, [91.0])])
    assert not any("p" in row for row in rows.values()) and "Holm" not in str(document)


def test_seeds_that_end_alike_have_no_p_value() -> None:
    """Their deviation of zero would say that any difference is certain."""
    runs = [run_of(SGD, seed, [90.0]) for seed in (1, 2)]
    _, rows = table([*runs, *(run_of(RANK, seed, [90.3]) for seed in (1, 2))])
    assert not any("p" in row for row in rows.values())


def test_p_values_of_several_rows_are_adjusted() -> None:
    """Two rows with the same scores have twice the p value of one of them."""
    runs = [run_of(SGD, seed, [88.0 + seed]) for seed in (1, 2)]
    others = [run_of(RANK, seed, [91.0 + seed]) for seed in (1, 2, 1, 2)]
    for run in others[2:]:
        run.config["rank"] = 4
        run.config["knobs"] = {"rank": 4}
    _, rows = table([*runs, *others])
    scores = {"a": {1: 89.0, 2: 90.0}, "b": {1: 92.0, 2: 93.0}, "c": {1: 92.0, 2: 93.0}}
    error = Noise([*scores.values()]).error(scores, {"a": -1, "b": 1})
    assert error is not None
    assert [row["p"] for row in rows.values()] == ["-", *[f"{4 * error.p_above(3.0):.3f}"] * 2]


def test_the_time_to_a_target_has_columns() -> None:
    runs = [run_of(SGD, 1, [80.0, 90.0]), run_of(SGD, 2, [86.0, 90.0])]
    runs += [run_of(RANK, 1, [84.0, 86.0]), run_of(RANK, 2, [60.0, 70.0])]
    _, rows = table(runs, 85.0)
    first, second = rows.values()
    assert first["to accuracy 85 (epochs)"] == "1.25 +- 0.3536"  # 1.5 and 1
    assert first["to accuracy 85 (s)"] == "0.3125 +- 0.08839"
    assert second["to accuracy 85 (epochs)"] == second["to accuracy 85 (s)"] == "1 of 2"
    _, rows = table(runs, 99.0)
    assert [row["to accuracy 99 (epochs)"] for row in rows.values()] == ["never", "never"]
    assert "to accuracy 99 (s)" not in next(iter(rows.values()))
    _, rows = table(runs)
    assert not any(heading.startswith("to ") for row in rows.values() for heading in row)


def test_the_target_of_the_runs_is_shown_where_none_is_asked_for() -> None:
    target = {"score": "accuracy", "value": 85.0, "step": 5.0, "epoch": 0.5}
    _, rows = table([run_of(SGD, 1, [90.0], target=target), run_of(RANK, 1, [90.0])])
    cells = [row["to accuracy 85 (epochs)"] for row in rows.values()]
    assert cells == ["0.5", "-"]
