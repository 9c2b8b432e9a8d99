"""`gcbench report diff`."""

from __future__ import annotations

from pathlib import Path

import pytest
from results import result_of, write

pytestmark = pytest.mark.usefixtures("here")

SGD, RANK = "powersgd/table4/sgd", "powersgd/table4/rank_7"


def tree(name: str, experiment: str, *overrides: str, accuracies: tuple[float, ...]) -> Path:
    for seed, accuracy in enumerate(accuracies, 1):
        write(
            Path(name) / str(seed), result_of(experiment, *overrides, seed=seed, accuracy=accuracy)
        )
    return Path(name)


def test_two_runs(said) -> None:
    write(Path("a"), result_of(RANK, accuracy=94.0, ratio=10.0, step_seconds=0.2))
    write(Path("b"), result_of(RANK, "rank=3", accuracy=93.5, ratio=20.0, step_seconds=0.1))
    text = said("diff", "a", "b")
    assert [line.split() for line in text.splitlines() if line.strip().startswith("rank")] == [
        ["rank", "7", "3"]
    ]
    assert "compressor.method.rank" not in text  # the knob already says so
    (accuracy,) = (
        line.split() for line in text.splitlines() if line.strip().startswith("accuracy")
    )
    assert accuracy[:6] == ["accuracy", "94", "(n=1)", "93.5", "(n=1)", "-"] and "-0.5" in accuracy
    assert "no spread known: one seed each" in text
    assert any(line.split()[:1] == ["ratio"] and "+10" in line for line in text.splitlines())
    assert any(
        line.split()[:1] == ["step_milliseconds"] and "-100" in line for line in text.splitlines()
    )


def test_what_changes_only_times_is_named(said) -> None:
    write(Path("a"), result_of(SGD, "trainer.threads=1", step_seconds=0.2))
    write(Path("b"), result_of(SGD, "trainer.threads=4", "trainer.overlap=true", step_seconds=0.1))
    text = said("diff", "a", "b")
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("trainer.")]
    assert sorted(lines) == [["trainer.overlap", "false", "true"], ["trainer.threads", "1", "4"]]
    assert "The same configuration." not in text
    assert "The same configuration." in said("diff", "a", "a")


def test_means_are_compared_by_the_test_of_claims(said) -> None:
    tree("a", SGD, accuracies=(94.0, 95.0, 96.0))
    tree("same", SGD, "optimizer.lr=0.2", accuracies=(94.3, 96.1, 94.9))
    tree("better", SGD, "optimizer.lr=0.4", accuracies=(97.5, 98.5, 99.5, 98.5))
    # Student's t of two rows with variances of 1 and 0.84, at 4 degrees of freedom.
    assert "no more than noise (2.2)" in said("diff", "a", "same")
    text = said("diff", "a", "better")
    assert "  more than noise (1.8)" in text and "95 [94, 96] (n=3)" in text
    (accuracy,) = (line for line in text.splitlines() if line.strip().startswith("accuracy"))
    assert " +3.5 " in accuracy and "optimizer.lr" in text


def test_rows_are_paired_by_name(said) -> None:
    for name, shift in (("a", 0.0), ("b", 1.0)):
        write(Path(name) / "sgd", result_of(SGD, accuracy=94.0 + shift))
        write(Path(name) / "rank", result_of(RANK, accuracy=90.0 + shift))
    write(Path("b") / "cpu", result_of(RANK, budget="cpu"))
    write(Path("b") / "bad", result_of(RANK, seed=2, status="failed", reason="out of memory"))
    text = said("diff", "a", "b")
    assert (
        text.count("accuracy") >= 2
        and "powersgd/table4/rank_7, budget cpu, seed 1, only in b" in text
    )
    assert "The same configuration." in text and "B, seed 2: failed: out of memory" in text


def test_what_only_one_tree_has_is_told_apart(said) -> None:
    write(Path("a") / "sgd", result_of(SGD))
    for rank in (3, 5):
        write(Path("b") / str(rank), result_of(RANK, f"rank={rank}"))
    text = said("diff", "a", "b")
    assert f"{RANK} rank=3, seed 1, only in b" in text and f"{RANK} rank=5, seed 1, only in" in text


def test_seeds_that_differ_are_compared_by_their_means(said) -> None:
    tree("a", SGD, accuracies=(94.0, 94.2, 94.4))
    for name, accuracies in (("near", (94.3, 94.5)), ("far", (94.8, 94.9))):
        for seed, accuracy in enumerate(accuracies, 11):
            write(
                Path(name) / str(seed),
                result_of(SGD, "optimizer.lr=0.2", seed=seed, accuracy=accuracy),
            )
        (line,) = [
            x for x in said("diff", "a", name).splitlines() if x.strip().startswith("accuracy")
        ]
        assert ("no more than noise" in line) == (name == "near")
