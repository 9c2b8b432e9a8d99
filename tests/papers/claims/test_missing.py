"""The runs that tables and claims lack, most valuable first."""

from __future__ import annotations

from pathlib import Path

import pytest
from lib.missing import Missing, MissingRun, budget_of, find_missing
from results import result_of, write
from written import written

from gcbench.papers.claims.answers import answer_claim
from gcbench.papers.claims.claim import Claim
from gcbench.papers.claims.comparisons import rows
from gcbench.papers.claims.evidence import Evidence
from gcbench.papers.tables.tables import TableRow, read_table
from gcbench.runner.records.store import find_runs

pytestmark = pytest.mark.usefixtures("here")

OUT = Path("outputs")
SGD, RANK, RANK_2 = (f"powersgd/table4/{name}" for name in ("sgd", "rank_7", "rank_2"))
IMAGENET = "qsgd/table1/alexnet_fp32"
TABLE = """
title: Another table
source: somebody, table 3
columns:
  accuracy: {title: Test accuracy, unit: "%", measure: accuracy, better: higher}
rows:
"""


@pytest.fixture
def lacking():
    """Return a function that finds what tables and claims lack besides the results in OUT."""

    def find(
        *tables: str,
        relations: tuple[str, ...] = (),
        budget: str = "cpu",
        measure: str = "accuracy",
        machine: str | None = None,
        seeds: tuple[int, ...] = (1, 2, 3),
    ) -> Missing:
        of = rows("powersgd/table4", measure=measure)
        asked = [
            Claim(
                f"powersgd-0{i}-near",
                paper="powersgd",
                where="table 4",
                text=said,
                expect="it does",
                needs="short",
                machine=machine,
                holds=[written(said, of)],
            )
            for i, said in enumerate(relations, start=1)
        ]
        evidence = Evidence(find_runs([OUT]).runs, [OUT])
        answered = [answer_claim(claim, evidence) for claim in asked]
        read = [read_table(name) for name in tables]

        def seconds(config: dict) -> float | None:
            return {"none": 10.0, "powersgd": 60.0}.get(config["choices"]["compressor"])

        return find_missing(read, answered, evidence, budget, seeds, seconds)

    return find


def add_table(here: Path, name: str, *experiments: str, columns: str = TABLE) -> None:
    rows = "".join(f"  - {{experiment: {one}, title: {one}}}\n" for one in experiments)
    path = here.parent / "table" / f"{name}.yaml"
    path.write_text(columns + rows)


def has(experiment: str, seed: int, budget: str = "cpu", **facts: object) -> None:
    result = result_of(experiment, budget=budget, seed=seed, accuracy=60 + seed, **facts)  # type: ignore[arg-type]
    write(OUT / f"{experiment}-{budget}-s{seed}", result)


def names(runs: list[MissingRun]) -> list[tuple[str, int]]:
    return [(run.experiment.rpartition("/")[2], run.seed) for run in runs]


def test_a_row_without_a_run_comes_before_further_seeds(lacking) -> None:
    has(SGD, 1)
    missing = lacking("small/one")
    assert names(missing.runs) == [
        ("rank_7", 1),
        ("sgd", 2),
        ("rank_7", 2),
        ("sgd", 3),
        ("rank_7", 3),
    ]
    assert {run.budget for run in missing.runs} == {"cpu"}
    assert missing.runs[0].row == ("+experiment/powersgd/table4=rank_7", "budget=cpu")
    assert missing.runs[0].seconds == 60.0 and missing.runs[0].tables == ["small/one"]


def test_claims_come_first_and_the_cheapest_of_them_before_the_others(lacking) -> None:
    for seed in (1, 2):
        has(RANK, seed)
    relations = ("rank_2 > rank_7", "rank_7 > sgd")
    runs = lacking("small/one", relations=relations).runs
    # 60 s of rank 7 and 30 s of SGD decide the second claim; the first takes 240 s.
    assert names(runs) == [
        *[("rank_7", 3), ("sgd", 1), ("sgd", 2), ("sgd", 3)],
        *[("rank_2", 1), ("rank_2", 2), ("rank_2", 3)],
    ]
    claims_of = {name: run.claims for (name, _), run in zip(names(runs), runs, strict=True)}
    assert claims_of["sgd"] == ["powersgd-02-near"]
    assert claims_of["rank_7"] == ["powersgd-02-near", "powersgd-01-near"]
    assert claims_of["rank_2"] == ["powersgd-01-near"]
    assert runs[0].tables == ["small/one"]  # and it is listed only once


def test_a_row_like_none_so_far_is_taken_to_cost_what_the_others_do(lacking) -> None:
    relations = ("rank_2 > rank_7", "sign_norm > sgd", "rank_7 > sgd")
    rows = dict.fromkeys(name for name, _ in names(lacking(relations=relations).runs))
    # The median of 10, 60 and 60 s is 60 s: the second claim takes 70 s, the third 60 s more.
    assert list(rows) == ["sign_norm", "sgd", "rank_7", "rank_2"]


def test_what_needs_a_machine_for_its_times_is_asked_for_its_scores(lacking) -> None:
    assert len(lacking(relations=("rank_7 > sgd",), machine="16 GPUs").runs) == 6


def test_a_claim_whose_seeds_have_run_lacks_nothing(lacking) -> None:
    for seed in (1, 2, 3):
        has(SGD, seed)
        has(RANK, seed)
    assert lacking(relations=("rank_7 > sgd - 5",)).runs == []
    # Equal scores do not decide whether one row is better, and no more seeds are asked for.
    assert lacking(relations=("rank_7 > sgd",)).runs == []


def test_short_runs_are_not_asked_for_where_they_decide_nothing(lacking) -> None:
    """A claim about recovery lacks runs of the papers' number of steps."""
    relations = ("rank_7 >= sgd - 1", "rank_2 > sgd", "rank_2 > rank_7")
    assert {run.experiment for run in lacking(relations=relations[:1]).runs} == set()
    runs = lacking(relations=relations, budget="cpu_steps").runs
    assert {run.claims[0] for run in runs[:6]} == {"powersgd-01-near"}
    assert {run.budget for run in runs} == {"cpu_steps"} and len(runs) == 9


def test_stale_runs_come_before_all_others(lacking) -> None:
    """A run again counts in their place, as it is newer."""
    dates = {1: "2026-11-21T00:00:00+00:00", 2: "2026-11-30T00:00:00+00:00"}
    for seed in (1, 2, 3):
        for experiment in (SGD, RANK):
            result = result_of(experiment, budget="cpu", seed=seed)
            result["git"]["date"] = dates.get(seed, dates[1])
            write(OUT / f"{experiment}-{seed}", result)
    runs = lacking("small/one", relations=("rank_2 > sgd",)).runs
    assert names(runs)[:2] == [("rank_7", 1), ("rank_7", 3)]
    assert [run.stale for run in runs] == [True] * 2 + [False] * 3
    again = result_of(RANK, budget="cpu", seed=1, finished="2026-11-30T00:00:00+00:00")
    write(OUT / "again", again)
    assert names(lacking("small/one").runs) == [("rank_7", 3)]


def test_diverged_runs_are_not_asked_for_again_and_failed_ones_are(lacking) -> None:
    has(SGD, 1, status="diverged")
    has(SGD, 2, status="failed")
    assert [seed for name, seed in names(lacking("small/one").runs) if name == "sgd"] == [2, 3]


def test_further_seeds_of_a_claim_have_the_rate_that_served_best(lacking) -> None:
    has(SGD, 1)
    for lr, accuracy in (("1", 70.0), ("0.5", 60.0)):
        result = result_of(RANK, f"optimizer.lr={lr}", budget="cpu", accuracy=accuracy)
        write(OUT / f"rank-{lr}", result)
    (run,) = [r for r in lacking(relations=("rank_7 > sgd",)).runs if r.experiment == RANK][:1]
    assert "optimizer.lr=1" in run.overrides and run.seed == 2


def test_questions_of_time_are_left_out(lacking, here: Path) -> None:
    add_table(here, "small/steps", SGD, columns=TABLE.replace(": accuracy", ": step_milliseconds"))
    missing = lacking("small/steps", relations=("rank_7 > sgd",), measure="step_milliseconds")
    assert missing.runs == [] and missing.timed == ["small/steps"]


def test_what_needs_data_that_not_everybody_has_is_left_out_but_at_the_papers_budget(
    lacking, here: Path
) -> None:
    add_table(here, "small/big", IMAGENET)
    missing = lacking("small/big")
    assert missing.runs == [] and list(missing.needing.values()) == [[IMAGENET]]
    assert len(lacking("small/big", budget="paper").runs) == 3


def test_what_needs_data_that_lie_here_is_lacking(
    lacking, here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_table(here, "small/big", IMAGENET)
    monkeypatch.setattr("lib.missing.data_folder", lambda: tmp_path)
    (tmp_path / "imagenet-mini").mkdir()
    assert lacking("small/big").runs == []
    (tmp_path / "imagenet").mkdir()
    assert len(lacking("small/big").runs) == 3 and lacking("small/big").needing == {}


@pytest.mark.parametrize(("ending", "at_hand"), [("", 3), (".xz", 3), (".zip", 0)])
def test_files_of_libsvm_may_lie_compressed(
    lacking, here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str, at_hand: int
) -> None:
    add_table(here, "small/year", "ecqsgd/table1_year/full_precision")
    monkeypatch.setattr("lib.missing.data_folder", lambda: tmp_path)
    (tmp_path / "libsvm").mkdir()
    for name in ("YearPredictionMSD", "YearPredictionMSD.t"):
        assert lacking("small/year").runs == [], "not both"
        (tmp_path / "libsvm" / f"{name}{ending}").touch()
    assert len(lacking("small/year").runs) == at_hand


def test_what_is_the_same_for_all_seeds_needs_one(lacking, here: Path) -> None:
    add_table(here, "small/bits", SGD, columns=TABLE.replace(": accuracy", ": ratio"))
    assert names(lacking("small/bits").runs) == [("sgd", 1)]


def test_tables_share_runs(lacking, here: Path) -> None:
    add_table(here, "small/two", SGD, "powersgd/table3_cifar10/sgd")
    runs = lacking("small/one", "small/two").runs
    sgd = [run for run in runs if run.experiment == SGD]
    assert names(runs).count(("sgd", 1)) == 1
    assert all(run.tables == ["small/one", "small/two"] for run in sgd)


def test_rows_stand_at_the_smallest_budget_at_which_they_run_alike() -> None:
    cifar, speech, convex = (
        TableRow("", experiment=name)
        for name in (SGD, "qsgd/table1/lstm_qsgd", "ecqsgd/figure3/full_precision")
    )
    assert [budget_of(row, "cpu_medium") for row in (cifar, speech, convex)] == [
        *["cpu_medium", "cpu", "paper"],
    ]
    assert {budget_of(row, "paper") for row in (cifar, speech, convex)} == {"paper"}
