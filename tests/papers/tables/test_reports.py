"""Tables and other reports from folders of runs."""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from results import result_of, write

from gcbench.core.errors import ConfigError
from gcbench.papers.claims.kept_tests import find_tests
from gcbench.papers.tables.keep import keep_index, keep_runs
from gcbench.papers.tables.measured import KeptStudy, find_link_table, find_study
from gcbench.papers.tables.rates import Rate, _best
from gcbench.papers.tables.tables import read_table, tables_of
from gcbench.runner.records.result import count_bits
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun, find_runs, read_kept
from gcbench.runner.report.document import format_number, format_signed
from gcbench.runner.report.points import compare_points

pytestmark = pytest.mark.usefixtures("here")

SGD, RANK = "powersgd/table4/sgd", "powersgd/table4/rank_7"
SCALING = "powersgd/figure3/sgd"  # its rows differ in workers and backend
OUT = Path("outputs")
NO_IDENTITY = ("seed", "logger", "data.root", "trainer.backend", "trainer.tta")


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of a markdown table by row title, joining the parts of a wide table."""
    cells: dict[str, list[str]] = {}
    for line in lines(text, "| "):
        title, *others = (cell.strip() for cell in line.strip("| ").split(" | "))
        cells.setdefault(title, []).extend(others)
    return cells


def three_seeds(experiment: str, *overrides: str, **settings: object) -> None:
    for seed, accuracy in ((1, 94.0), (2, 94.4), (3, 94.8)):
        name = f"{experiment}-{'-'.join(overrides)}-s{seed}"
        write(
            OUT / name, result_of(experiment, *overrides, seed=seed, accuracy=accuracy, **settings)
        )  # type: ignore[arg-type]


def test_a_name_of_a_table_is_that_table_and_of_its_parts_all_of_them(here: Path) -> None:
    folder = here.parent / "table" / "small"
    for name in ("one_more", "parts_a", "parts_b"):
        shutil.copy(folder / "one.yaml", folder / f"{name}.yaml")
    assert tables_of("small/one") == ["small/one"]  # and not small/one_more
    assert tables_of("small/parts") == ["small/parts_a", "small/parts_b"]
    assert len(tables_of("small")) == 5


def test_seeds_beside_the_paper(said) -> None:
    three_seeds(SGD)
    row = rows(said("table=small/one", "format=markdown"))["No compression"]
    assert row[:3] == ["94.4 [94.0, 94.8] (n=3)", "94.3", "+0.1"]
    assert row[6:] == ["250 (n=3)", "312", "-62", "1, 2, 3"]


def test_deviation_where_the_paper_prints_one(said, here: Path) -> None:
    three_seeds(SGD)
    path = here.parent / "table/small/one.yaml"
    path.write_text(path.read_text().replace("spread: range", "spread: deviation"))
    assert (
        rows(said("table=small/one", "format=markdown"))["No compression"][0] == "94.4 +- 0.4 (n=3)"
    )


def test_ours_may_have_more_digits_than_the_paper_prints(said, here: Path) -> None:
    three_seeds(SGD)
    path = here.parent / "table/small/one.yaml"
    path.write_text(
        path.read_text().replace(
            "measure: step_milliseconds,", "measure: step_milliseconds, digits: 1,"
        )
    )
    assert rows(said("table=small/one", "format=markdown"))["No compression"][6:9] == [
        "250.0 (n=3)",
        "312",
        "-62.0",
    ]


def test_a_missing_row_says_what_to_run(said) -> None:
    three_seeds(SGD)
    text = said("table=small/one", "format=markdown")
    assert rows(text)["medium: Rank_7"][-1] == "missing"
    assert "- medium: Rank_7: `gcbench -m +experiment/powersgd/table4=rank_7 seed=1,2,3`" in text
    assert "`gcbench -m +experiment/powersgd/table4=sgd,rank_7 budget=bits`" in text
    assert rows(text)["Projected"] == [
        "-",
        "99.0",
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
        "published only",
    ]
    assert (
        "- `gcbench -m +experiment/powersgd/table4=sgd seed=1,2,3`"
        in text.partition("## Commands")[2]
    )


def test_bad_runs_are_shown_and_not_averaged(said) -> None:
    write(OUT / "a", result_of(SGD, seed=1, accuracy=94.0))
    write(
        OUT / "b",
        result_of(
            SGD, seed=2, accuracy=10.0, status="diverged", reason="the loss is not finite at step 7"
        ),
    )
    write(OUT / "c", result_of(RANK, seed=1, status="failed", reason="out of memory"))
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][0] == "94.0 (n=1)"
    assert rows(text)["No compression"][-1] == "1; 2 diverged"
    assert rows(text)["medium: Rank_7"][0] == "failed"
    assert "- No compression, seed 2: diverged: the loss is not finite at step 7" in text
    assert "- medium: Rank_7, seed 1: failed: out of memory" in text


def test_a_score_that_is_not_finite_is_noted_with_its_seed(said) -> None:
    for seed in (1, 2):
        result = result_of(SGD, seed=seed, accuracy=94.0)
        result["test"] |= {"accuracy": None} if seed == 2 else {}
        write(Path(f"outputs/s{seed}"), result)
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][0] == "94.0 (n=1)"
    assert "No compression, seed 2: accuracy is not finite, so it is left out of the mean" in text


def test_the_newest_of_duplicates_counts(said) -> None:
    write(OUT / "old", result_of(SGD, accuracy=10.0, finished="2026-01-01T00:00:00+00:00"))
    write(OUT / "new", result_of(SGD, accuracy=94.0, finished="2026-01-02T00:00:00+00:00"))
    shutil.copytree(OUT / "new", OUT / "tables/copy")  # a copy is the same run
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][0] == "94.0 (n=1)"


def test_budgets_are_not_mixed(said) -> None:
    write(OUT / "paper", result_of(SGD, accuracy=94.0))
    write(OUT / "cpu", result_of(SGD, budget="cpu", accuracy=60.0, ratio=2.25))
    write(OUT / "bits", result_of(SGD, budget="bits", ratio=1.0))
    expected = 24 * 32 * 1000 / 8 / 2**20
    for budget, accuracy in (("paper", "94.0 (n=1)"), ("cpu", "60.0 (n=1)")):
        text = said("table=small/one", "format=markdown", f"budget={budget}")
        assert rows(text)["No compression"][0] == accuracy
        assert rows(text)["No compression"][3] == f"{expected:.3f} (n=1)"
        assert "Data per epoch\N{DOUBLE DAGGER} (MiB)" in text
        assert "\N{DOUBLE DAGGER} Data per epoch: budget=bits. Two steps" in text
        assert ("stand-in's ratio" in text) == (budget == "cpu")
        assert (rows(text)["No compression"][-2] == "2.25") == (budget == "cpu")
    assert "Budget cpu: Minutes per row" in text and "model=airnet in place of resnet18" in text
    assert "trainer.epochs=4 in place of 300" in text


def test_other_configurations_stand_apart(said) -> None:
    write(OUT / "a", result_of(RANK, accuracy=94.0))
    write(OUT / "b", result_of(RANK, "rank=5", "trainer.precision=bf16", accuracy=50.0))
    write(
        OUT / "c",
        result_of(RANK, "trainer.threads=1", "trainer.checkpoint_minutes=3", seed=2, accuracy=95.0),
    )
    text = said("table=small/one", "format=markdown")
    assert rows(text)["medium: Rank_7"][0] == "94.5 [94.0, 95.0] (n=2)"
    assert "- medium: Rank_7 with rank=5 trainer.precision=bf16: test accuracy 50 (n=1) %" in text
    assert "`gcbench +experiment/powersgd/table4=rank_7 rank=5 trainer.precision=bf16`" in text


def test_overrides_beside_every_row(said) -> None:
    write(OUT / "a", result_of(RANK, accuracy=94.0))
    write(OUT / "b", result_of(RANK, "trainer.precision=bf16", accuracy=93.0))
    text = said("table=small/one", "format=markdown", "with=trainer.precision=bf16")
    assert rows(text)["medium: Rank_7"][0] == "93.0 (n=1)"
    assert "With trainer.precision=bf16 added to every row." in text
    assert (
        "- No compression: `gcbench -m +experiment/powersgd/table4=sgd trainer.precision=bf16 "
        "seed=1,2,3`" in text
    )
    assert "with trainer.precision=fp32: test accuracy 94 (n=1)" in text


@pytest.mark.parametrize("split", ["test", "valid"])
def test_the_best_learning_rate_of_a_grid(said, split: str) -> None:
    """The row's own rate is 0.1; 0.2 is best by validation, 0.05 on the test split."""
    for rate, test, valid in ((0.05, 94.9, 90.0), (0.1, 94.0, 91.0), (0.2, 94.5, 92.0)):
        own = [] if rate == 0.1 else [f"optimizer.lr={rate}"]
        write(OUT / f"test{rate}", result_of(SGD, *own, accuracy=test))
        if split == "valid":
            write(OUT / f"valid{rate}", result_of(SGD, *own, "dataset.split=valid", accuracy=valid))
    write(
        OUT / "diverged",
        result_of(SGD, "optimizer.lr=9", accuracy=99.0, status="diverged", reason="not finite"),
    )
    text = said("table=small/one", "format=markdown")
    row = rows(text)["No compression"]
    grid = text.partition("## Learning rates")[2].partition("##")[0]
    if split == "valid":
        assert row[0] == "94.5 (n=1)" and "lr 0.2, the best of 3" in row[-1]
        assert (
            "0.05: 90 (n=1), 0.1: 91 (n=1), 0.2: 92 (n=1); 0.2 is reported, chosen by validation"
            in grid
        )
        assert "with optimizer.lr=0.05: test accuracy 94.9 (n=1)" in text
    else:
        assert row[0] == "94.9 (n=1)" and "lr 0.05, the best of 4" in row[-1]
        assert "9: diverged (n=1); 0.05 is reported, chosen on the test split" in grid


def test_a_row_whose_own_part_is_the_validation_part_is_reported_on_the_test_part(
    said, here
) -> None:
    path = here.parent / "table/small/one.yaml"
    gpt, other = "modern/gpt/none", "modern/gpt/fp16"
    path.write_text(path.read_text().replace(SGD, gpt).replace(RANK, other))
    for rate, perplexity in ((0.001, 60.0), (0.002, 50.0), (0.004, 55.0)):
        for seed in (1, 2):
            tried = result_of(gpt, f"optimizer.lr={rate}", seed=seed, accuracy=perplexity + seed)
            write(OUT / f"valid{rate}{seed}", tried)
    text = said("table=small/one", "format=markdown")
    row = rows(text)["No compression"]
    assert (
        row[-1] == "1, 2; lr 0.001, the best of 3 in 6 tries"
        and row[0] == "61.5 [61.0, 62.0] (n=2)"
    )
    assert "- All scores are of the validation part of the data (dataset.split=valid)" in text

    write(OUT / "other", result_of(other, accuracy=70))
    for seed in (1, 2, 3):
        own = ["optimizer.lr=0.001", "dataset.split=test"]
        write(OUT / f"test{seed}", result_of(gpt, *own, seed=seed, accuracy=80))
    text = said("table=small/one", "format=markdown")
    row = rows(text)["No compression"]
    assert row[-1] == "1, 2, 3; lr 0.001, the best of 3 in 6 tries on valid"
    assert row[0] == "80.0 (n=3)"
    assert (
        "- medium: Rank_7: scores are of the validation part of the data (dataset.split=valid);"
        in text
    )
    assert "+experiment/modern/gpt=none optimizer.lr=0.001 dataset.split=test seed=1,2,3`" in text
    assert "+experiment/modern/gpt=none optimizer.lr=0.004 dataset.split=valid seed=1,2`" in text
    grid = text.partition("## Learning rates")[2].partition("##")[0]
    assert "6 tries, accuracy for optimizer.lr = 0.001: 61.5 (n=2)" in grid
    assert "0.001 is reported, chosen by validation" in grid


def test_runs_from_before_a_key_count_for_a_row_with_the_value_of_before(said, here) -> None:
    path = here.parent / "table/small/one.yaml"
    earlier = f"{SGD}, with: {{trainer.label_smoothing: 0.0}}"
    path.write_text(path.read_text().replace(SGD, earlier))
    for rate in (0.1, 0.2):
        result = result_of(SGD, f"optimizer.lr={rate}", accuracy=94 + rate)
        del result["config"]["trainer"]["label_smoothing"]
        write(OUT / str(rate), result)
    row = rows(said("table=small/one", "format=markdown"))["No compression"]
    assert row[0] == "94.2 (n=1)" and "lr 0.2, the best of 2" in row[-1]


def test_a_rate_with_many_digits_is_typed_with_all_of_them(said) -> None:
    lr = 0.31622776601683794  # as `interval` of a search draws one
    write(OUT / "own", result_of(SGD, accuracy=94.0))
    write(OUT / "searched", result_of(SGD, f"optimizer.lr={lr}", accuracy=94.5))
    assert f"optimizer.lr={lr}`" in said("table=small/one", "format=markdown")


def test_a_lucky_seed_does_not_choose_a_learning_rate(said) -> None:
    """Seed 3 at 0.2 is above the mean at 0.1, but below seed 3 at 0.1; 0.05 has only seed 1."""
    for rate, scores in ((0.05, {1: 94.1}), (0.1, {1: 94, 2: 95, 3: 96}), (0.2, {3: 95.5})):
        own = [] if rate == 0.1 else [f"optimizer.lr={rate}"]
        for seed, accuracy in scores.items():
            result = result_of(SGD, *own, seed=seed, accuracy=accuracy)
            write(OUT / f"{rate}-{seed}", result)
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][0] == "94.1 (n=1)"
    assert "0.05 is reported, chosen on the test split, which is reported too, by seeds" in text


def test_a_row_that_has_the_best_rate_is_said_to_have_it(said) -> None:
    """At budget=cpu the row's own rate is 0.5, where the paper has 0.1."""
    for own, accuracy in (([], 80.0), (["optimizer.lr=0.25"], 81.0)):
        result = result_of(SGD, *own, budget="cpu", accuracy=accuracy)
        write(OUT / f"rate{accuracy}", result)
    text = said("table=small/one", "budget=cpu", "format=markdown")
    assert rows(text)["No compression"][0] == "81.0 (n=1)"
    (line,) = [line for line in text.splitlines() if line.endswith(": No compression.  ")]
    assert "optimizer.lr=0.25 in place of 0.1" in line


def test_a_chosen_rate_that_was_not_tested_is_missing(said) -> None:
    for rate, valid in ((0.1, 91.0), (0.2, 92.0)):
        own = [] if rate == 0.1 else [f"optimizer.lr={rate}"]
        write(OUT / f"valid{rate}", result_of(SGD, *own, "dataset.split=valid", accuracy=valid))
    text = said("table=small/one", "format=markdown")
    assert (
        "- No compression: `gcbench -m +experiment/powersgd/table4=sgd optimizer.lr=0.2 seed=1,2,3`"
        in text
    )


def test_an_emulated_link_is_told_as_it_is_typed(said) -> None:
    write(OUT / "plain", result_of(SGD))
    write(OUT / "emulated", result_of(SGD, "network=emulated", "network.latency=1ms"))
    assert "with network=emulated network.bandwidth=1gbit network.latency=1ms: " in said(
        "table=small/one", "format=markdown"
    )


def test_the_same_configuration_under_another_name_counts(said) -> None:
    write(OUT / "a", result_of("powersgd/table3_cifar10/sgd", accuracy=94.0))
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][0] == "94.0 (n=1)"
    assert (
        "No compression, seed 1: the run of powersgd/table3_cifar10/sgd, "
        "whose configuration is the same" in text
    )
    assert rows(text)["No compression"][-1] == "1"
    assert "gcbench +experiment/powersgd/table3_cifar10=sgd" in text.partition("## Commands")[2]


def test_a_row_of_its_own_counts_before_a_borrowed_one_unless_it_failed(said) -> None:
    write(OUT / "a", result_of("powersgd/table3_cifar10/sgd", accuracy=94.0))
    write(OUT / "b", result_of(SGD, accuracy=93.0))
    assert rows(said("table=small/one", "format=markdown"))["No compression"][0] == "93.0 (n=1)"
    write(OUT / "c", result_of(SGD, seed=2, status="failed", reason="out of memory"))
    write(OUT / "d", result_of("powersgd/table3_cifar10/sgd", seed=2, accuracy=95.0))
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][0] == "94.0 [93.0, 95.0] (n=2)"
    assert "No compression, seed 2: the run of powersgd/table3_cifar10/sgd" in text


def test_nothing_is_borrowed_from_other_budgets_failures_or_another_backend(
    said, here: Path
) -> None:
    path = here.parent / "table/small/one.yaml"
    path.write_text(path.read_text().replace(SGD, f"{SCALING}, workers: 2, backend: gloo"))
    nccl = SCALING, "trainer.workers=2", "trainer.backend=nccl"
    write(OUT / "cpu", result_of(*nccl, budget="bits"))
    write(OUT / "failed", result_of(*nccl, status="failed"))
    write(OUT / "timed", result_of(*nccl, seed=3))
    assert rows(said("table=small/one", "format=markdown"))["No compression"][-1].startswith(
        "missing"
    )
    write(OUT / "untimed", result_of(*nccl, seed=2, step_seconds=None))
    assert rows(said("table=small/one", "format=markdown"))["No compression"][-1] == "2"


def test_overrides_typed_beside_a_borrowed_run_count_where_the_row_has_them_too(said) -> None:
    write(
        OUT / "a",
        result_of("powersgd/table3_cifar10/sgd", "trainer.launcher=torchrun", accuracy=94.0),
    )
    write(
        OUT / "b",
        result_of("powersgd/table3_cifar10/sgd", "optimizer.lr=0.5", seed=2, accuracy=94.0),
    )
    assert rows(said("table=small/one", "format=markdown"))["No compression"][-1] == "1"


def test_needs_are_marked(said, here: Path) -> None:
    path = here.parent / "table/small/one.yaml"
    path.write_text(path.read_text().replace("powersgd/table4/rank_7", f"{SCALING}, needs: 2 GPUs"))
    text = said("table=small/one", "format=markdown")
    assert rows(text)["medium: Rank_7"][-1] == "missing"
    assert "- 2 GPUs: medium: Rank_7" in text.partition("## Needs")[2]


def test_rows_of_one_experiment_are_told_apart_by_what_is_typed_beside_it(said, here: Path) -> None:
    path = here.parent / "table/small/one.yaml"
    text = path.read_text()
    for row, backend in ((SGD, "gloo"), (RANK, "nccl")):
        text = text.replace(row, f"{SCALING}, name: {backend}, workers: 2, backend: {backend}")
    path.write_text(text)
    write(
        OUT / "gloo", result_of(SCALING, "trainer.workers=2", "trainer.backend=gloo", accuracy=94.0)
    )
    write(OUT / "alone", result_of(SCALING, accuracy=93.0))  # 16 workers, which no row has
    table = said("table=small/one", "format=markdown")
    assert rows(table)["No compression"][0] == "94.0 (n=1)"
    assert rows(table)["medium: Rank_7"][-1] == "missing"
    _, also = table.split("Also ran, and is not in the table")
    assert also.count("with trainer.workers=16: ") == 1, "what no row has, once"
    beside = "trainer.workers=2 trainer.backend=nccl"
    assert f"`gcbench -m +experiment/powersgd/figure3=sgd {beside} seed=1,2,3`" in table


def test_rows_of_a_grid_are_one_sweep(said, here: Path) -> None:
    path = here.parent / "table/small/one.yaml"
    head = path.read_text().partition("rows:")[0]
    grid = [(backend, workers) for backend in ("gloo", "nccl") for workers in (2, 4)]
    entries = [
        f"  - {{experiment: {SCALING}, name: {b}_{w}, workers: {w}, backend: {b}, "
        f"title: {b} {w}}}\n"
        for b, w in grid
    ]
    path.write_text(f"{head}rows:\n{''.join(entries)}")
    values = "trainer.workers=2,4 trainer.backend=gloo,nccl"
    text = said("table=small/one", "format=markdown")
    assert f"`gcbench -m +experiment/powersgd/figure3=sgd {values} seed=1,2,3`" in text
    # Without its last row it is no full grid, so each backend is a sweep of its own.
    path.write_text(f"{head}rows:\n{''.join(entries[:-1])}")
    text = said("table=small/one", "format=markdown")
    assert values not in text
    assert "=sgd trainer.workers=2,4 trainer.backend=gloo seed=1,2,3`" in text


def test_a_name_stands_for_one_row(here: Path) -> None:
    path = here.parent / "table/small/one.yaml"
    text = path.read_text()
    for row, workers in ((SGD, 2), (RANK, 4)):
        text = text.replace(row, f"{SCALING}, name: same, workers: {workers}")
    path.write_text(text)
    with pytest.raises(ConfigError, match="have name=same but run different things"):
        read_table("small/one")


def test_a_table_says_what_its_errors_and_ratios_mean_and_why_some_are_empty(
    said, here: Path
) -> None:
    (here.parent / "table" / "small" / "errors.yaml").write_text(
        "title: errors\nsource: us\ncolumns:\n"
        "  ratio: {title: Ratio, measure: ratio}\n"
        "  received: {title: Received, measure: received_ratio, digits: 1}\n"
        "  error: {title: vNMSE, measure: vnmse, digits: 2}\n"
        "  cosine: {title: Cosine, measure: cosine, digits: 2}\nrows:\n"
        f"  - {{experiment: {SGD}, title: Plain}}\n"
        f"  - {{experiment: {SGD}, name: older, with: {{clip_norm: 1.0}}, title: Older}}\n"
        f"  - {{experiment: {RANK}, title: Signs}}\n"
    )
    wire = count_bits([3000.0] * 2, 10, 10, 600.0).model_dump()
    write(OUT / "plain", {**result_of(SGD), "bits_wire": wire})
    old = {"relative": 0.5, "cosine": 0.9, "samples": 1}
    git = {"commit": "a" * 40, "dirty": False, "date": "2026-11-27T00:00:00+00:00"}
    older = result_of(SGD, "clip_norm=1.0")
    write(OUT / "older", {**older, "compression_error": old, "git": git})
    signs = {"relative": None, "vnmse": None, "cosine": 0.7, "samples": 1, "direction": True}
    write(OUT / "signs", {**result_of(RANK), "compression_error": signs})
    page = said("table=small/errors", "format=markdown")
    cells = {
        row.split("|")[1].strip(): row.split("|")[2:6]
        for row in page.splitlines()
        if row.startswith("| ")
    }
    assert [cell.split()[0] for cell in cells["Plain"]] == ["4", "2.0", "0.25", "0.90"]
    assert [cell.split()[0] for cell in cells["Older"]] == ["4", "-", "-", "-"]
    assert [cell.split()[0] for cell in cells["Signs"]] == ["4", "-", "-", "0.70"]
    assert "- Older: no error of compression, as these runs are older than its" in page
    assert "- Signs: updates without a scale have a cosine, and no error" in page
    assert r"- vNMSE: \|update - g\|^2 / \|g\|^2" in page
    assert "- Received ratio: the bits that a worker receives from others" in page


def test_virtual_workers_have_no_times(said) -> None:
    write(OUT / "a", result_of(SGD, step_seconds=None))
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][6] == "no times" and "Virtual workers" in text


@pytest.mark.parametrize(
    ("workers", "time", "remark"),
    [
        (4, "250", ""),
        (16, "no times", "4 workers in place of 16: their times are not the row's"),
    ],
)
def test_times_of_fewer_workers_than_the_row_has_are_not_its_own(
    said, here: Path, workers: int, time: str, remark: str
) -> None:
    path = here.parent / "table/small/one.yaml"
    path.write_text(path.read_text().replace(SGD, f"{SCALING}, workers: {workers}, backend: gloo"))
    typed = "trainer.workers=4", "trainer.backend=gloo"
    write(
        OUT / "a",
        {
            **result_of(SCALING, *typed, budget="cpu"),
            "launcher": "local",
            "oversubscribed": True,
        },
    )
    text = said("table=small/one", "budget=cpu", "format=markdown")
    cells = rows(text)["No compression"]
    assert cells[6].partition(" (")[0] == time and cells[0].startswith("90.0")
    assert cells[-2:] == ["4", "1"] and remark in text
    beside = f"{' '.join(typed)} trainer.launcher=local"  # auto would choose virtual workers
    assert f"+experiment/powersgd/figure3=sgd budget=cpu {beside}" in text


def test_times_of_an_emulated_network_are_marked(said) -> None:
    write(OUT / "a", {**result_of(SGD), "network": {"emulated": True}})
    assert "times are from an emulated network" in said("table=small/one", "format=markdown")
    write(OUT / "b", result_of(SGD, seed=2))
    result_of_a = OUT / "a" / "result.json"
    result_of_a.unlink()
    assert "emulated" not in said("table=small/one", "format=markdown")


def test_times_of_several_links_are_said(said) -> None:
    for seed, link in ((1, None), (2, None), (3, "1gbit")):
        network = {"emulated": False, "link": link}
        write(OUT / f"{seed}", {**result_of(SGD, seed=seed), "network": network})
    text = said("table=small/one", "format=markdown")
    (note,) = (line for line in text.splitlines() if "times are means over" in line)
    machine = note.partition("over ")[2].partition(" and ")[0]
    assert note == f"- No compression: times are means over {machine} and {machine}, link 1gbit"
    (OUT / "3" / "result.json").unlink()
    assert "times are means over" not in said("table=small/one", "format=markdown")


def test_dirty_checkouts_and_several_commits_are_said(said) -> None:
    for seed, commit, dirty in ((1, "a" * 40, True), (2, "b" * 40, False)):
        write(
            OUT / commit, {**result_of(SGD, seed=seed), "git": {"commit": commit, "dirty": dirty}}
        )
    text = said("table=small/one", "format=markdown")
    assert (
        "commit: 2 different: aaaaaaa; bbbbbbb" in text
        and "1 of 2 runs come from a checkout with uncommitted changes" in text
    )


def test_stale_runs_are_marked_where_they_stand(said) -> None:
    """Both warm up to the rate of 16 workers, and PowerSGD starts from random factors."""
    for seed, day in ((1, "21"), (2, "23")):
        for experiment in (SGD, RANK):
            result = result_of(experiment, seed=seed)
            result["git"]["date"] = f"2026-11-{day}T00:00:00+00:00"
            write(OUT / f"{experiment}-{seed}", result)
    text = said("table=small/one", "format=markdown")
    assert [row[-1] for row in rows(text).values()].count("1§, 2") == 2
    assert "- § 1 of 4 runs is older than 84f5a540: random numbers come from another hash" in text
    assert "- § 2 of 4 runs are older than 84f5a540: a warm-up starts at exactly" in text
    listed = said("runs", "all").splitlines()
    assert sum("done§" in line for line in listed) == 2
    assert listed[-1] == "§ older than a change that alters their scores"


def test_runs_of_a_dirty_checkout_are_marked_where_they_stand(said) -> None:
    for seed in (1, 2):
        result = result_of(SGD, seed=seed)
        git = {**result["git"], "dirty": seed == 2}
        write(OUT / f"{seed}", {**result, "git": git})
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][-1] == "1, 2\N{DAGGER}"
    assert "- \N{DAGGER} 1 of 2 runs come from a checkout with uncommitted changes" in text
    assert "1, 2\\dag{}" in said("table=small/one", "format=latex")
    listed = said("runs", "all").splitlines()
    assert [("done\N{DAGGER}" in line) for line in listed if "outputs/" in line] == [False, True]
    assert listed[-1] == "\N{DAGGER} from a checkout with uncommitted changes"


def test_what_cannot_be_read_is_named(said, caplog: pytest.LogCaptureFixture) -> None:
    write(OUT / "a", result_of(SGD, accuracy=94.0))
    write(OUT / "b", {**result_of(SGD), "schema_version": 99})
    (OUT / "c").mkdir()
    (OUT / "c/result.json").write_text("{torn")
    found = find_runs(["outputs"])
    assert len(found.runs) == 1 and len(found.unreadable) == 2
    assert (
        "b/result.json: schema_version 99" in found.unreadable[0]
        and "c/result.json" in found.unreadable[1]
    )


def test_a_kept_report_can_be_made_again_from_what_was_kept(said, here: Path) -> None:
    write(OUT / "old/run", result_of(SGD, accuracy=10.0))
    write(
        OUT / "run",
        result_of(SGD, "data.root=/mine", accuracy=94.0, finished="2026-01-02T00:00:00+00:00"),
    )
    write(OUT / "rate", result_of(SGD, "optimizer.lr=0.2", accuracy=93.0))
    write(OUT / "bits", result_of(SGD, budget="bits"))
    write(OUT / "other", result_of(RANK, "rank=3", accuracy=70.0))
    write(OUT / "bad", result_of(RANK, seed=2, status="failed", reason="out of memory"))
    write(OUT / "cpu", result_of(SGD, budget="cpu"))
    said("table=small/one", "keep=outputs")
    page, kept = OUT / "tables/small/one.md", OUT / "results/powersgd.jsonl.xz"
    first, content = page.read_text(), kept.read_bytes()
    runs = [run for run in read_kept(kept) if not isinstance(run, str)]
    assert sorted(run.name for run in runs) == ["bad", "bits", "other", "rate", "run", "run"]
    assert "/mine" not in lzma.decompress(kept.read_bytes()).decode()
    index = (OUT / "README.md").read_text()
    assert "(tables/small/README.md)" in index and "claims.md" not in index
    assert "(one.md)" in (OUT / "tables/small/README.md").read_text()
    said("table=small/one", "keep=outputs")  # the copies are the same runs
    assert page.read_text() == first and kept.read_bytes() == content
    shutil.move(kept, here.parent / "moved.jsonl.xz")
    shutil.rmtree(OUT)
    said("table=small/one", "keep=again", f"results={here.parent / 'moved.jsonl.xz'}")
    assert Path("again/tables/small/one.md").read_text() == first


def test_a_kept_page_gains_runs_from_elsewhere_and_loses_none(said, here: Path) -> None:
    write(OUT / "run", result_of(SGD, accuracy=94.0))
    said("table=small/one", "keep=kept")
    write(Path("more/run"), result_of(RANK, accuracy=93.0))
    said("table=small/one", "keep=kept", "results=more")
    page = Path("kept/tables/small/one.md").read_text()
    assert "94.0 (n=1)" in page and "93.0 (n=1)" in page


def test_of_several_tables_those_that_ran_are_kept(said, here: Path) -> None:
    tables = here.parent / "table" / "small"
    for name, row in (("ran", SGD), ("waits", RANK)):
        text = (
            f"title: {name}\nsource: us\ncolumns: {{accuracy: {{title: A, measure: accuracy}}}}\n"
        )
        (tables / f"{name}.yaml").write_text(f"{text}rows:\n  - {{experiment: {row}, title: R}}\n")
    for file in tables.glob("*.yaml"):
        if file.stem not in ("ran", "waits"):
            file.unlink()
    write(OUT / "cpu", result_of(SGD, budget="cpu", accuracy=80.0))
    said("table=small", "budget=cpu", "keep=outputs")
    assert sorted((page.name for page in OUT.rglob("tables/small/*.md")), reverse=True) == [
        "ran-cpu.md",
        "README.md",
    ]
    said("table=small/waits", "budget=cpu", "keep=outputs")  # asked for by its name
    assert (OUT / "tables/small/waits-cpu.md").is_file()


def test_runs_that_were_stopped_are_shown_and_not_kept(said) -> None:
    write(OUT / "whole", result_of(SGD, accuracy=94.0))
    write(OUT / "stopped", result_of(RANK, status="interrupted"))
    assert "interrupted" in said("table=small/one", "format=markdown")
    said("table=small/one", "keep=outputs")
    assert "interrupted" not in (OUT / "tables/small/one.md").read_text()
    (run,) = find_runs([OUT / "results/powersgd.jsonl.xz"]).runs
    assert run.experiment == SGD


def test_a_folder_without_runs_is_named(said) -> None:
    OUT.mkdir(exist_ok=True)
    assert said("runs") == (
        "results=outputs: no runs there; type gcbench for a first one, or gcbench runs FOLDER\n"
    )


def test_a_run_that_was_killed_is_named(said, caplog: pytest.LogCaptureFixture) -> None:
    write(OUT / "whole", result_of(SGD))
    (OUT / "whole/start.json").write_text("{}")
    assert "whole" in said("runs", "all") and not caplog.text
    (OUT / "killed").mkdir()
    (OUT / "killed/start.json").write_text("{}")
    assert "killed" not in said("runs", "all")
    assert (
        "not listed, as they are running or were killed: outputs/killed; gcbench again"
        in caplog.text
    )


def test_a_report_from_another_directory_says_where_it_looked(
    said, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["table=small/one"], ["tables"]):
        caplog.clear()
        said(*arguments)
        assert (
            f"there is no folder {tmp_path / 'outputs'}; to read kept results, type results="
            in caplog.text
        )


def test_what_cannot_be_read_of_kept_runs_is_told_and_never_lost(
    said, caplog: pytest.LogCaptureFixture
) -> None:
    write(OUT / "run", result_of(SGD, accuracy=94.0))
    said("table=small/one", "keep=outputs")
    kept = OUT / "results/powersgd.jsonl.xz"
    (line,) = lzma.decompress(kept.read_bytes()).splitlines()
    kept.write_bytes(
        lzma.compress(
            b"\n".join(
                [
                    line,
                    b'{"name": "x"}',
                    b"{",
                    b"[" * 10_000,
                    line.replace(b'"metrics": [', b'"metrics": 3, "x": ['),
                ]
            )
        )
    )
    shutil.rmtree(OUT / "run")
    with caplog.at_level("WARNING", "gcbench"):
        assert "94" in said("table=small/one", "format=markdown")
    assert "line 2: " in caplog.text and ", and 3 more" in caplog.text
    before = kept.read_bytes()
    with pytest.raises(ConfigError, match="line 2: .*; move the file away"):
        said("table=small/one", "keep=outputs")
    assert kept.read_bytes() == before


def test_an_override_beside_rows_is_for_those_that_have_its_key(said) -> None:
    text = said("table=small/one", "format=markdown", "with=rank=3", "budget=cpu")
    missing = [line for line in text.splitlines() if line.startswith("- ") and "budget=cpu" in line]
    assert ["rank=3" in line for line in missing] == [False, True], "also where nothing has run"
    three_seeds(SGD)
    three_seeds(RANK, "rank=3")
    text = rows(said("table=small/one", "format=markdown", "with=rank=3"))
    assert text["No compression"][-1] == text["medium: Rank_7"][-1] == "1, 2, 3"
    with pytest.raises(ConfigError, match="with=rnak=3: no row of small/one has such a key"):
        said("table=small/one", "with=rnak=3")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("budget=cpu", "type gcbench report budget=cpu, without with="),
        *((f"{key}=1", f"with={key}=1: {key} does not change results") for key in NO_IDENTITY),
    ],
)
def test_an_override_that_selects_nothing_is_refused(said, override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        said("table=small/one", f"with={override}")


def test_a_row_may_have_keys_of_its_own_at_a_budget(said, here: Path) -> None:
    """A smaller model needs another rank or share to send as few bytes as the paper's."""
    table = here.parent / "table" / "small" / "one.yaml"
    table.write_text(table.read_text().replace("note: a note", "at: {cpu: {rank: 3}}"))
    three_seeds(RANK)
    three_seeds(RANK, "rank=3", budget="cpu")
    for budget, typed in (("paper", ""), ("cpu", " rank=3")):
        text = said("table=small/one", "format=markdown", f"budget={budget}")
        assert rows(text)["medium: Rank_7"][-1] == "1, 2, 3"
        beside = "" if budget == "paper" else f" budget={budget}"
        assert (
            f"gcbench -m +experiment/{RANK.replace('/rank', '=rank')}{beside}{typed} seed" in text
        )


def test_points_of_a_sweep_of_times_stay_apart() -> None:
    results = [result_of(SGD, f"trainer.threads={n}", step_seconds=n / 10) for n in (1, 2)]
    (table,) = compare_points([RecordedRun(Result.parse(one), "", list) for one in results])
    assert [line.title for line in table.lines] == [
        "none trainer.threads=1",
        "none trainer.threads=2",
    ]


def test_points_that_compress_little_say_so() -> None:
    sizes = {20_000: 0.1, 0: 1.0}
    results = [
        result_of(RANK, f"min_size={size}") | {"compressed_share": share}
        for size, share in sizes.items()
    ]
    (table,) = compare_points([RecordedRun(Result.parse(one), "", list) for one in results])
    assert table.sections[0].lines == [
        "powersgd min_size=20000: compressed 10 % of the gradient's values (tensors of fewer than "
        "20,000 values are sent whole; type min_size=0)."
    ]


def test_an_override_is_not_for_rows_in_which_it_means_nothing(said, here: Path) -> None:
    quantizer = "ecqsgd/figure5/terngrad"  # has the key alpha, but no error feedback
    table = here.parent / "table" / "small" / "one.yaml"
    table.write_text(table.read_text() + f"  - {{experiment: {quantizer}, title: TernGrad}}\n")
    three_seeds(quantizer)
    text = rows(said("table=small/one", "format=markdown", "with=alpha=0.5"))
    assert text["TernGrad"][-1] == "1, 2, 3" and text["medium: Rank_7"][-1] == "missing"


def test_csv_has_plain_numbers(said) -> None:
    three_seeds(SGD)
    first, _, last = csv.DictReader(io.StringIO(said("table=small/one", "format=csv")))
    assert (float(first["accuracy_low"]), float(first["accuracy_high"]), first["accuracy_n"]) == (
        94.0,
        94.8,
        "3",
    )
    assert float(first["accuracy_difference"]) == pytest.approx(0.1) and first["experiment"] == SGD
    assert (last["accuracy"], last["accuracy_published"], last["accuracy_n"]) == ("", "99.0", "0")


def test_latex_escapes(said) -> None:
    three_seeds(SGD)
    text = said("table=small/one", "format=latex")
    assert r"medium: Rank\_7 & " in text and r"A small table: 100 \% of it" in text
    assert text.count(r"\toprule") == 1 and "_7 " not in text.replace(r"\_7", "")


def test_the_terminal_shows_the_same(said) -> None:
    three_seeds(SGD)
    text = said("table=small/one")
    assert "94.4 [94.0, 94.8] (n=3)" in text and "Made by" in text


def test_a_study_beside_the_paper(said) -> None:
    missing = said("table=small/times", "format=markdown")
    assert rows(missing)["AlexNet"] == ["-", "195", "-", "missing"]
    (OUT / "studies").mkdir()
    study = {
        "study": "times",
        "settings": {"gbps": 10},
        "rows": [{"row": "AlexNet", "time": 195.5}, {"row": "Ours", "time": [1, 3]}],
    }
    (OUT / "studies/times.json").write_text(json.dumps(study))
    text = said("table=small/times", "format=markdown", "keep=kept", "budget=cpu")
    assert Path("kept/tables/small/times.md").exists()
    assert rows(text)["AlexNet"][:3] == ["196 (n=1)", "195", "0"]
    assert rows(text)["Ours"][0] == "2 [1, 3] (n=2)" and "gbps=10" in text
    assert said("table=small/times", "format=markdown", "results=kept") == text


def test_commands_that_keep_at_the_same_time_lose_nothing(here: Path) -> None:
    """Each command reads the file, adds its runs, and replaces the file."""
    halves = [[result_of(SGD, seed=2 * i + k) for i in range(8)] for k in (0, 1)]
    for k, half in enumerate(halves):
        for i, result in enumerate(half):
            write(here / f"half{k}" / str(i), result)
    starts = threading.Barrier(2)

    def keep(k: int) -> None:
        runs = find_runs([here / f"half{k}"]).runs
        starts.wait()
        for run in runs:
            keep_runs(here / "kept", [run])

    threads = [threading.Thread(target=keep, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {run.seed for run in find_runs([here / "kept"]).runs} == set(range(16))


def test_the_index_lists_tables_and_pictures_by_paper(here: Path) -> None:
    for name in ("tables/qsgd/layers-cpu.md", "tables/mine/own.md", "figures/which_method.png"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("# A title\n")
    for name in ("loss-over-bits-cpu", "train_loss-over-step", "breakdown"):
        picture = here / "figures" / "qsgd" / "figure3" / f"{name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()
    (here / "README.md").write_text("# Mine\n\nKept.\n\n## All tables\n\nold\n")
    (here / "tables/mine/README.md").write_text("# By hand\n")
    for _ in range(2):
        keep_index(here)
    text = (here / "README.md").read_text()
    assert text.startswith("# Mine\n\nKept.\n\n## All tables\n\n- [QSGD (") and "old" not in text
    pages = re.findall(r"^- \[(.+)\]\((.+)\)", text, re.MULTILINE)
    assert pages[1:] == [
        ("Everything that ran", "tables/README.md"),
        ("mine", "tables/mine/README.md"),
    ]
    qsgd, every, mine = ((here / page).read_text() for _, page in pages)
    assert qsgd.startswith("# QSGD (") and "- [A title (cpu)](layers-cpu.md)" in qsgd
    assert "<em>figure3: breakdown; figure3: loss over bits (cpu)</em>" in qsgd
    assert mine == "# By hand\n\n## All tables\n\n- [A title](own.md)\n"
    places = re.findall('src="([^"]+)"', qsgd)
    assert len(places) == 3 and all((here / "tables/qsgd" / place).exists() for place in places)
    assert 'src="../figures/which_method.png"' in every


def test_torn_files_of_evidence_are_named(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("links/resnet18-1gbit-2.json", "tests.json"):
        file = here / "outputs" / "results" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"rows": [')
    assert find_link_table("resnet18-1gbit-2", [here]) is None and find_tests([here]) is None
    for name in ("links/resnet18-1gbit-2.json", "tests.json"):
        assert f"not read: {here}/outputs/results/{name}: not a " in caplog.text


@pytest.mark.parametrize(
    ("find", "row"), [(find_study, "row"), (find_link_table, "method")], ids=["study", "link table"]
)
def test_what_was_finished_last_is_read_whenever_it_was_copied(
    here: Path, find: Callable[..., KeptStudy | None], row: str
) -> None:
    for age, day in enumerate(("03", "01", "02")):
        file = here / day / "times.json"
        file.parent.mkdir()
        content = {"study": "times", "finished": f"2026-01-{day}T00:00:00+00:00"}
        file.write_text(json.dumps({**content, "rows": [{row: day}]}))
        os.utime(file, (100 + age, 100 + age))
    found = find("times", [here])
    assert found is not None and found.study["rows"][0]["row"] == "03"


def test_the_newest_copy_of_a_link_table_is_read(here: Path) -> None:
    for age, folder in enumerate(("b", "c", "a")):
        file = here / folder / "links" / "lstm.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"rows": [{"method": folder}]}))
        os.utime(file, (100 - age, 100 - age))
    found = find_link_table("links/lstm", [here])
    assert found is not None and found.study["rows"][0]["row"] == "b"


def test_a_rate_with_which_a_seed_diverged_is_not_chosen(said) -> None:
    for seed in (1, 2):
        write(OUT / f"own{seed}", result_of(SGD, seed=seed, accuracy=94.0))
    write(OUT / "high1", result_of(SGD, "optimizer.lr=0.2", seed=1, accuracy=95.0))
    write(OUT / "high2", result_of(SGD, "optimizer.lr=0.2", seed=2, status="diverged"))
    text = said("table=small/one", "format=markdown")
    assert rows(text)["No compression"][0] == "94.0 (n=2)" and "0.2: diverged (n=2)" in text


def test_the_lowest_of_scores_that_are_better_low_is_chosen() -> None:
    rates = [Rate(lr, {1: score}, []) for lr, score in ((0.1, 2.0), (0.2, 1.0), (0.4, 3.0))]
    assert (_best(rates, lower=True), _best(rates, lower=False)) == (0.2, 0.4)


def test_numbers_that_round_to_five_digits_have_all_of_them() -> None:
    texts = {"9999": 9999.4, "10,000": 9999.6, "-10,000": -9999.6, "1.5": 1.5}
    assert [format_number(value, None) for value in texts.values()] == [*texts]
    assert format_signed(9999.6, None) == "+10,000"


def test_zero_is_printed_as_zero() -> None:
    assert [format_number(0.0, digits) for digits in (None, 0, 3)] == ["0"] * 3
    assert format_signed(0.0, 2) == format_signed(-0.001, 2) == "0"
