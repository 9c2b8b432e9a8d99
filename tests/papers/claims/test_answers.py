"""`gcbench papers claims`: the claims, and the answers to them from made-up results."""

from __future__ import annotations

import csv
import inspect
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from results import result_of, write
from written import written

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.papers.claims import claim as claims
from gcbench.papers.claims.claim import Claim, read_claims
from gcbench.papers.claims.comparisons import Comparison, rows, study
from gcbench.papers.claims.evidence import Evidence, _early_loss, measure_row
from gcbench.papers.claims.missing import MissingRuns, describe_cost, missing_runs
from gcbench.papers.claims.relations import EARLY_LOSS, LEARNING_RATE
from gcbench.papers.claims.verdicts import Verdict, combine
from gcbench.papers.studies.study import class_of, study_names
from gcbench.papers.tables.rates import Grid, Rate
from gcbench.papers.tables.rows import Row
from gcbench.papers.tables.tables import TableRow
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun, find_runs
from gcbench.runner.report.measures import MEASURES

pytestmark = pytest.mark.usefixtures("here")

SGD, RANK = "powersgd/table4/sgd", "powersgd/table4/rank_7"
OUT = Path("outputs")
TABLES = ("powersgd/table4",)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """Return a function that replaces the claims of the papers by others."""

    def put(*made: Claim) -> None:
        ours = [replace(claim, paper="powersgd") for claim in made]
        monkeypatch.setattr(claims, "all_claims", lambda: ours)

    return put


def runs(experiment: str, *accuracies: float, budget: str = "paper", **settings: object) -> None:
    for seed, accuracy in enumerate(accuracies, 1):
        result = result_of(experiment, budget=budget, seed=seed, accuracy=accuracy, **settings)  # type: ignore[arg-type]
        write(OUT / f"{experiment}-{budget}-s{seed}-{settings.get('status', 'done')}", result)


def answers(said, *arguments: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(said("claims", "format=csv", *arguments))))


def near(
    *holds: str, measure: str = "accuracy", tables: Sequence[str] = TABLES, **facts: Any
) -> Claim:
    """Return a claim about rows of tables, by default that rank 7 is near SGD."""
    of = rows(*tables, measure=measure)
    return Claim(
        "powersgd-01-near",
        where="table 4",
        text="Rank 7 is near SGD.",
        expect="within 1",
        caution="mind the gap",
        needs="short",
        holds=[written(text, of) for text in holds or ["rank_7 > sgd - 1"]],
        **facts,
    )


def studied(*holds: Comparison, **facts: Any) -> Claim:
    """Return a claim with a test and a study, by default that rank 2 takes less than 2."""
    claim = Claim(
        "powersgd-02-studied",
        where="section 5",
        text="It is fast.",
        expect="less than 2",
        needs="cpu",
        but="for W = 1",
        tests=["papers/test_powersgd.py::test_something"],
        holds=holds or [study("speed", "time")["Rank 2, W=4"] < 2],
    )
    return replace(claim, **facts)


ALL = read_claims()


def test_there_are_seventy_of_five_papers_and_ten_of_later_ones() -> None:
    assert len({claim.id for claim in ALL}) == len(ALL) == 80
    counts = {
        paper: sum(claim.paper == paper for claim in ALL)
        for paper in {claim.paper for claim in ALL}
    }
    assert counts == {
        "qsgd": 16,
        "powersgd": 17,
        "orq": 14,
        "maxnorm": 11,
        "ecqsgd": 12,
        "modern": 10,
    }


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.id)
def test_what_a_claim_asks_for_is_there(claim: Claim) -> None:
    assert claim.tests or claim.rows or claim.studies
    for part in claim.rows:
        assert part.measure in {*MEASURES, LEARNING_RATE, EARLY_LOSS} and part.relations
    for part in claim.studies:
        assert part.relations
        if part.name.startswith("links/"):
            continue
        assert part.name in study_names()
        module = inspect.getmodule(class_of(part.name))
        assert module and f'"{part.column}"' in inspect.getsource(module)
        tables = [conf_directory() / "table" / f"{table}.yaml" for table in part.of if "/" in table]
        assert all(path.is_file() for path in tables)


V = Verdict


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ([V.REPRODUCED, V.COVERED], V.REPRODUCED),
        ([V.COVERED, V.COVERED], V.COVERED),
        ([V.REPRODUCED, V.CONTRARY, V.NOT_DECIDED], V.IN_PART),
        ([V.WITHIN_NOISE, V.CONTRARY], V.CONTRARY),
        ([V.REPRODUCED, V.WITHIN_NOISE], V.WITHIN_NOISE),
        ([V.REPRODUCED, V.WITHIN_NOISE, V.NOT_DECIDED], V.NOT_DECIDED),
        ([V.REPRODUCED, V.CONTRARY, V.NOT_YET], V.NOT_YET),
        ([], V.NOT_YET),
    ],
)
def test_all_parts_of_a_claim_have_to_hold(verdicts: list[Verdict], verdict: Verdict) -> None:
    assert combine(verdicts) is verdict


@pytest.mark.parametrize(
    ("sgd", "rank", "answer"),
    [
        ((94.0, 94.2, 94.4), (94.1, 94.3, 94.5), "reproduced"),
        ((94.0, 95.0, 96.0), (92.5, 94.5, 93.5), "not decided"),
        ((94.0, 94.2, 94.4), (90.1, 90.3, 90.5), "contrary at this budget"),
        ((94.0,), (94.0,), "within noise"),
        ((94.0,), (10.0,), "not decided"),
        ((94.0, 94.2, 94.4), (), "not yet"),
    ],
)
def test_means_of_rows_are_compared(said, asked, sgd, rank, answer: str) -> None:
    asked(near())
    runs(SGD, *sgd)
    runs(RANK, *rank)
    (row,) = answers(said)
    assert row["answer"] == answer and row["caution"] == "mind the gap"
    assert f"(n={len(sgd)})" in row["evidence"] and "accuracy at budget paper" in row["evidence"]
    lacking = {
        ((94.0, 94.2, 94.4), ()): "gcbench -m +experiment/powersgd/table4=rank_7 seed=1,2,3",
        ((94.0,), (10.0,)): "gcbench -m +experiment/powersgd/table4=rank_7,sgd seed=2,3",
        ((94.0,), (94.0,)): "gcbench -m +experiment/powersgd/table4=rank_7,sgd seed=2,3",
    }
    if "not yet" in answer:
        assert "table4=rank_7" in row["commands"] and row["cost"]
    else:
        assert row["commands"] == lacking.get((sgd, rank), "")


def scored(experiment: str, *scores: tuple[float, float], budget: str = "paper") -> None:
    """Write a run for each accuracy and test loss, those of other rows with other seeds."""
    scores = scores[1:] + scores[:1] if experiment == SGD else scores
    for seed, (accuracy, loss) in enumerate(scores, 1):
        result = result_of(experiment, budget=budget, seed=seed, accuracy=accuracy)
        result["test"] |= {"loss": loss}
        write(OUT / f"{experiment}-{budget}-{seed}", result)


DISPUTED = "test losses disagree"


@pytest.mark.parametrize(
    ("hold", "accuracy", "loss", "answer", "basis"),
    [
        ("rank_7 > sgd", 94.4, 0.5, "reproduced", "budget paper; by test loss"),
        ("rank_7 > sgd", 94.4, 0.61, "within noise", "budget paper"),  # too near to 0.6
        ("rank_7 > sgd", 94.0, 0.7, "contrary at this budget", "budget paper; by test loss"),
        ("rank_7 > sgd", 94.4, 0.7, "within noise", "budget paper"),  # they contradict each other
        ("rank_7 > sgd", 94.0, 0.5, "not decided", "budget paper"),
        ("rank_7 > sgd - 1", 94.0, 0.5, "within noise", "budget paper"),  # a size
        ("rank_7 > 1.01 * sgd", 96.0, 0.5, "within noise", "budget paper"),
        ("rank_7 > sgd", 97.0, 0.7, "reproduced", f"budget paper; {DISPUTED}"),
    ],
)
def test_the_test_loss_decides_an_order_that_accuracies_leave_open(
    said, asked, hold: str, accuracy: float, loss: float, answer: str, basis: str
) -> None:
    asked(near(hold))
    for experiment, mean, losses in ((SGD, 94.2, 0.6), (RANK, accuracy, loss)):
        scored(experiment, *((mean + 0.5 * i, losses + 0.01 * i) for i in (-1, 0, 1)))
    (row,) = answers(said)
    assert (row["answer"], row["basis"]) == (answer, basis)
    if "by test loss" in basis:
        assert f"{answer} by the test loss: rank_7 > sgd: " in row["evidence"]
    assert ("test loss says the opposite: rank_7" in row["evidence"]) == (accuracy == 97.0)
    asked(
        near(hold.replace(">", "<"), measure="error_rate")
    )  # the same, of a score where low is good
    if hold == "rank_7 > sgd":
        assert answers(said)[0]["answer"] == answer


def test_every_test_of_a_loss_counts_in_holms_correction(said, asked) -> None:
    """One loss with p = 0.03 decides nothing beside the accuracy, whose test came as well."""
    asked(near("rank_7 > sgd"))
    for experiment, accuracy, loss in ((SGD, 94.0, 0.625), (RANK, 94.1, 0.6)):
        scored(experiment, *((accuracy + 0.5 * i, loss + 0.009 * i) for i in (-1, 0, 1)))
    assert answers(said)[0]["answer"] == "within noise"


def test_seeds_are_planned_and_do_not_follow_what_was_found(said, asked) -> None:
    """A claim that three seeds leave open asks for no more, unless its table has rows with six."""
    asked(near("rank_7 > sgd"))
    runs(SGD, 94.0, 94.2, 94.4)
    runs(RANK, 94.1, 94.3, 94.5)
    (row,) = answers(said)
    assert row["answer"] == "within noise" and row["commands"] == ""
    write(OUT / "fourth", result_of(SGD, seed=4, accuracy=94.2))
    (row,) = answers(said)
    assert row["commands"] == "gcbench -m +experiment/powersgd/table4=rank_7 seed=4,5,6; " + (
        "gcbench -m +experiment/powersgd/table4=sgd seed=5,6"
    )


def test_missing_runs_are_rows_with_the_seeds_that_they_lack(here: Path, asked) -> None:
    asked(near())
    runs(SGD, 60.0, 60.1, budget="cpu")
    evidence = Evidence(find_runs([OUT]).runs, [OUT])
    parts = [(part, "cpu") for claim in read_claims() for part in claim.rows]
    assert missing_runs(parts, evidence, (1, 2, 3)) == [
        MissingRuns(RANK, (), "cpu", (1, 2, 3)),
        MissingRuns(SGD, (), "cpu", (3,)),
    ]


def test_budgets_answer_by_themselves(said, asked) -> None:
    asked(near())
    runs(SGD, 94.0, 94.2, 94.4)
    runs(RANK, 60.0, 60.2, 60.4, budget="cpu")
    # Each budget has only one of the two rows.
    assert [row["answer"] for row in answers(said)] == ["not yet", "not yet"]
    runs(SGD, 50.0, 50.2, 50.4, budget="cpu")
    cpu, paper = answers(said)
    assert (cpu["answer"], cpu["basis"], paper["answer"]) == ("reproduced", "budget cpu", "not yet")
    assert "airnet in place of the paper's" in cpu["evidence"] and "94" not in cpu["evidence"]
    assert "reproduced (budget cpu) |" in said("claims", "format=markdown")
    runs(RANK, 90.0, 90.2, 90.4)
    assert [(row["answer"], row["basis"]) for row in answers(said)] == [
        ("contrary at this budget", "budget paper"),
        ("reproduced", "budget cpu"),
    ]
    assert "1 claim, 1 decided: 1 contrary at this budget." in said("claims", "format=markdown")


def test_the_budget_nearest_to_the_papers_counts(said, asked) -> None:
    asked(near())
    for budget, sgd in (("cpu", 50.0), ("cpu_medium", 90.0)):
        runs(SGD, sgd, sgd + 0.2, sgd + 0.4, budget=budget)
        runs(RANK, 60.0, 60.2, 60.4, budget=budget)
    assert [(row["answer"], row["basis"]) for row in answers(said)] == [
        ("contrary at this budget", "budget cpu_medium"),
        ("reproduced", "budget cpu"),
    ]


def test_one_seed_at_a_nearer_budget_does_not_undo_an_answer(said, asked) -> None:
    asked(near())
    for experiment in (SGD, RANK):
        runs(experiment, 93.0, budget="cpu_long")
        runs(experiment, 60.0, 60.2, 60.4, budget="cpu")
    assert [(row["answer"], row["basis"]) for row in answers(said)] == [
        ("reproduced", "budget cpu"),
        ("within noise", "budget cpu_long"),
    ]


@pytest.mark.parametrize(
    ("hold", "waits"),
    [
        ("rank_7 >= sgd - 1", True),
        ("abs(rank_7 - sgd) <= 1", True),
        ("rank_7 >= 0.9 * sgd", True),
        ("rank_7 >= sgd", False),
        ("rank_7 > sgd - 1", False),
        ("rank_7 - sgd >= sgd - rank_7", False),
    ],
)
def test_recovery_is_judged_after_the_papers_number_of_steps(
    said, asked, hold: str, waits: bool
) -> None:
    asked(near(hold))
    for budget in ("cpu", "cpu_long"):
        runs(SGD, 60.0, 60.2, 60.4, budget=budget)
        runs(RANK, 60.7, 60.5, 60.6, budget=budget)
    for row, budget in zip(answers(said), ("cpu_long", "cpu"), strict=True):
        assert f"accuracy at budget {budget}" in row["evidence"]
        so_far = "about recovery, which budget cpu_steps decides: rank_7 ends 0.40"
        assert (row["answer"] == "not yet") == (so_far in row["evidence"]) == waits
        word = "reproduced as equal (power" if "abs" in hold else "reproduced"
        assert ("ends 0.40 [0.04, 0.76] ahead of sgd where" in row["evidence"]) == waits
        assert (f"): {word}" in row["evidence"]) == waits
        command = "gcbench -m +experiment/powersgd/table4=rank_7,sgd budget=cpu_steps seed=1,2,3"
        assert row["commands"] == command * waits
    runs(SGD, 90.0, 90.2, 90.4, budget="cpu_steps")
    runs(RANK, 80.0, 80.2, 80.4, budget="cpu_steps")
    row = answers(said)[0]
    assert (row["answer"], row["basis"]) == ("contrary at this budget", "budget cpu_steps")


def test_a_claim_that_waits_says_so_and_one_that_holds_in_part_does_not_wait(said, asked) -> None:
    runs(SGD, 60.0, 60.2, 60.4, budget="cpu")
    runs(RANK, 50.0, 50.2, 50.4, budget="cpu")
    waiting = "| not yet (recovery waits for budget cpu_steps) |"
    for orders, seen in (([], True), (["rank_7 < sgd"], True), (["rank_7 > sgd"], True)):
        asked(near(*orders, "rank_7 >= sgd - 1"))
        assert (waiting in said("claims", "format=markdown")) == seen
    asked(near("rank_7 < sgd", "rank_7 > sgd - 2", "rank_7 >= sgd - 1"))
    assert "| in part (budget cpu) |" in said("claims", "format=markdown")


def test_compressed_rows_beside_each_other_recover_nothing(said, asked) -> None:
    """That two of them are alike may be asked after any number of steps."""
    asked(near("rank_2 >= rank_7 - 1"))
    runs(RANK, 60.0, 60.2, 60.4, budget="cpu")
    runs(RANK.replace("rank_7", "rank_2"), 60.1, 60.2, 60.3, budget="cpu")
    assert answers(said)[0]["answer"] == "reproduced"


@pytest.mark.parametrize(("mean", "answer"), [(94.3, "within noise"), (94.1, "not decided")])
def test_within_noise_is_a_mean_on_the_side_that_is_asked(said, asked, mean, answer) -> None:
    asked(near("rank_7 >= sgd"))
    runs(SGD, 93.8, 94.2, 94.6)
    runs(RANK, mean + 0.4, mean - 0.4, mean)
    assert answers(said)[0]["answer"] == answer


def test_rows_that_gain_no_steps_do_not_wait(said, asked) -> None:
    """MNIST's perceptron is the same at cpu_steps, so that its runs at cpu count there, too."""
    mnist = near("qsgd >= fp32 - 0.5", tables=["qsgd/mnist"])
    asked(mnist)
    for row in ("fp32", "qsgd"):
        for seed, accuracy in enumerate((98.0, 98.1, 98.2), 1):
            result = result_of(f"qsgd/mnist/{row}", budget="cpu", seed=seed, accuracy=accuracy)
            write(OUT / f"{row}-{seed}", result)
    runs("powersgd/table3_cifar10/sgd", 60.0, budget="cpu_steps")
    assert [(row["answer"], row["basis"]) for row in answers(said)] == [
        ("reproduced", "budget cpu")
    ]
    both = [*mnist.holds, *near("rank_7 >= sgd - 1").holds]
    asked(replace(mnist, holds=both))
    for experiment in (SGD, RANK):
        runs(experiment, 60.0, 60.1, 60.2, budget="cpu_steps")
    assert answers(said)[0]["basis"] == "budget cpu_steps"
    assert answers(said)[0]["answer"] == "reproduced"


def test_an_answer_says_that_it_rests_on_stale_or_dirty_runs(said, asked) -> None:
    asked(near())
    for experiment in (SGD, RANK):
        for seed, accuracy in enumerate((94.0, 94.2, 94.4), 1):
            result = result_of(experiment, seed=seed, accuracy=accuracy)
            result["git"] |= {"date": "2026-11-21T00:00:00+00:00", "dirty": seed == 1}
            write(OUT / f"{experiment}-{seed}", result)
    text = said("claims", "format=markdown")
    assert "| reproduced (budget paper)†§ |" in text
    assert "Evidence: † 2 of 6 runs come from a checkout with uncommitted changes" in text
    assert "Evidence: § 3 of 6 runs are older than 84f5a540: random numbers come" in text


def test_measures_of_one_budget_leave_the_answer_at_another_to_the_rest(said, asked) -> None:
    steps = rows(*TABLES, measure="step_milliseconds", budgets=["paper"])
    claim = near()
    asked(replace(claim, holds=[*claim.holds, steps.rank_7 < steps.sgd]))
    for experiment in (SGD, RANK):
        runs(experiment, 60.0, 60.1, budget="cpu")
    (row,) = answers(said)
    assert (
        row["answer"] == "reproduced"
        and "step milliseconds is not asked at budget cpu" in row["evidence"]
    )


def test_a_stand_in_waits_for_all_its_rows(said, asked) -> None:
    asked(near("rank_7 > sgd - 1", "rank_2 > sgd - 1"))
    runs(SGD, 60.0, 60.1, budget="cpu")
    runs(RANK, 50.0, 50.1, budget="cpu")
    assert [row["answer"] for row in answers(said)] == ["not yet"]


def test_what_diverged_is_worse_than_any_number(said, asked) -> None:
    asked(near("rank_7 > sgd + 10"))
    runs(RANK, 94.0, 94.2)
    runs(SGD, 95.0, status="diverged", reason="not finite")
    (row,) = answers(said)
    assert row["answer"] == "reproduced" and "sgd diverged (n=1)" in row["evidence"]
    asked(near("sgd > rank_7", measure="loss"))
    assert answers(said)[0]["answer"] == "reproduced"


def test_a_score_that_is_not_finite_is_worse_than_any_number(said, asked) -> None:
    asked(near("sgd > rank_7", measure="loss"))
    runs(RANK, 94.0, 94.2)
    result = result_of(SGD, accuracy=95.0)
    result["test"] |= {"loss": None}
    write(OUT / "infinite", result)
    (row,) = answers(said)
    assert row["answer"] == "reproduced" and "sgd not finite (n=1)" in row["evidence"]


def test_some_seeds_that_diverged_decide_nothing(said, asked) -> None:
    asked(near())
    runs(SGD, 94.0, 94.2, 94.1)
    runs(RANK, 94.0, 94.1)
    write(
        OUT / "bad", result_of(RANK, seed=3, accuracy=10.0, status="diverged", reason="not finite")
    )
    (row,) = answers(said)
    assert row["answer"] == "not decided" and "seed 3 diverged" in row["evidence"]


def test_sides_that_diverged_with_different_seeds_decide_nothing(said, asked) -> None:
    asked(near())
    bad = {"status": "diverged", "reason": "not finite"}
    for experiment, diverged in ((SGD, 1), (RANK, 2)):
        for seed in (1, 2):
            facts = bad if seed == diverged else {}
            result = result_of(experiment, seed=seed, accuracy=94.0, **facts)
            write(OUT / f"{experiment}-{seed}", result)
    assert answers(said)[0]["answer"] == "not decided"


def test_failed_runs_have_no_value(said, asked) -> None:
    asked(near())
    runs(SGD, 94.0, 94.2)
    runs(RANK, 94.0, status="failed", reason="out of memory")
    (row,) = answers(said)
    assert row["answer"] == "not yet" and "seed 1 failed: rank_7" in row["evidence"]
    assert "table4=rank_7 seed=1,2,3" in row["commands"]


def test_exact_measures_need_no_seeds(said, asked) -> None:
    asked(near("rank_7 > sgd", measure="ratio"))
    runs(SGD, 94.0, ratio=1.0)
    runs(RANK, 94.0, ratio=40.0)
    assert answers(said)[0]["answer"] == "reproduced"


def test_the_best_of_a_sweep(said, asked) -> None:
    asked(near("rank_7 == sgd", measure="learning_rate"))
    for experiment, best in ((SGD, 0.1), (RANK, 0.4)):
        for rate in (0.025, 0.1, 0.4):
            if (experiment, rate) != (RANK, 0.4):
                own = [] if rate == 0.1 else [f"optimizer.lr={rate}"]
                write(
                    OUT / f"{experiment}{rate}",
                    result_of(experiment, *own, accuracy=94.0 - abs(rate - best)),
                )
    (row,) = answers(said)
    assert row["answer"] == "not yet" and "2 rates of 3: rank_7" in row["evidence"]
    lacking = [
        "table4=rank_7,sgd optimizer.lr=0.025,0.1 seed=2,3",
        "rank_7 optimizer.lr=0.4 seed=1,2,3",
    ]
    assert all(words in row["commands"] for words in lacking)
    write(OUT / "last", result_of(RANK, "optimizer.lr=0.4", accuracy=94.0))
    (row,) = answers(said)  # one seed has no deviation, however far the rates are apart
    assert row["answer"] == "not decided" and "0.4 (n=1), the best of 3" in row["evidence"]


def record_tests(**outcomes: str) -> None:
    """Write the record of a test run; studied() names test_something."""
    named = {f"papers/test_powersgd.py::test_{name}": value for name, value in outcomes.items()}
    record = {"commit": "abc1234def", "finished": "2026-01-01T00:00:00", "outcomes": named}
    (OUT / "results").mkdir(parents=True, exist_ok=True)
    (OUT / "results/tests.json").write_text(json.dumps(record))


def write_study(time: object) -> None:
    (OUT / "studies").mkdir(parents=True, exist_ok=True)
    study = {"study": "speed", "rows": [{"row": "Rank 2, W=4", "time": time}]}
    (OUT / "studies/speed.json").write_text(json.dumps(study))


@pytest.mark.parametrize(
    ("time", "answer"),
    [(1.5, "in part"), ([1.4, 1.6, 5.4], "not decided"), (2.5, "in part")],
)
def test_tests_and_studies(said, asked, time: object, answer: str) -> None:
    asked(studied())
    record_tests(something="passed")
    (row,) = answers(said)
    assert row["answer"] == "not yet" and row["commands"] == "gcbench papers studies speed"
    asked(studied(study("links/grid", "time")["Rank 2, W=4"] < 2))
    assert answers(said)[0]["commands"] == "scripts/turns grid"
    asked(studied())
    write_study(time)
    (row,) = answers(said)
    assert row["answer"] == answer and row["basis"] == "tests at abc1234; a study"
    assert "passed at abc1234: papers/test_powersgd.py::test_something" in row["evidence"]
    assert "in part (tests at abc1234, a study), but not for W = 1" in said(
        "claims", "format=markdown"
    ) or (answer != "in part")


@pytest.mark.parametrize("outcomes", [{}, {"other": "passed"}, {"something": "failed"}])
def test_a_test_that_is_not_recorded_as_passed_shows_nothing(said, asked, outcomes: dict) -> None:
    asked(studied())
    write_study(1.5)
    record_tests(**outcomes)
    (row,) = answers(said)
    assert row["answer"] == "not yet" and row["commands"] == "scripts/claims_tests"
    assert "not recorded as passed: papers/test_powersgd.py::test_something" in row["evidence"]


def test_where_the_answer_was_an_input_it_is_consistent(said, asked) -> None:
    asked(near(input="its own number"))
    runs(SGD, 94.0, 94.2, 94.4)
    runs(RANK, 94.1, 94.3, 94.5)
    (row,) = answers(said)
    assert row["answer"] == "consistent" and "starts from its own number" in row["evidence"]


def test_what_needs_a_machine_has_an_estimate(said, asked) -> None:
    asked(near(machine="16 GPUs", gpu_hours=40))
    runs(SGD, 94.0, 94.2, 94.4, budget="cpu")
    (row, *_) = answers(said)
    assert row["commands"] == "gcbench -m +experiment/powersgd/table4=rank_7,sgd seed=1,2,3"
    assert row["cost"] == "6 runs; 16 GPUs, about 40 GPU-hours (an estimate)"


def test_runs_cost_what_the_shortest_like_them_took(said, asked) -> None:
    """The time of a run that was paused includes the pause."""
    asked(near())
    for seed, hours, worse in ((1, 9, 0), (2, 1, 6)):
        for name in (SGD, RANK):
            accuracy = 90.0 - worse * (name == RANK)
            result = result_of(name, seed=seed, accuracy=accuracy, step_seconds=None)
            result["finished"] = f"2026-01-01T{hours:02}:00:00+00:00"
            write(OUT / f"{name}-{seed}", result)
    (row,) = answers(said)
    assert row["cost"] == "2 runs, about 2 core-hours"


def test_rows_of_a_study_of_several_tables(said, asked) -> None:
    asked(studied(study("speed", "time", ["small/one", "small/two"])["Rank 2, W=4"] < 2))
    record_tests(something="passed")
    (OUT / "studies").mkdir()
    rows = [
        {"row": "Rank 2, W=4", "table": f"small/{name}", "time": time}
        for name, time in (("one", 1.5), ("two", 3.0))
    ]
    (OUT / "studies/speed.json").write_text(json.dumps({"study": "speed", "rows": rows}))
    (row,) = answers(said)
    assert row["answer"] == "in part"
    assert "one/Rank 2, W=4 1.5, two/Rank 2, W=4 3; 1 of 2 relations hold" in row["evidence"]


def test_an_answer_from_links_names_them(said, asked) -> None:
    """A table of several links has rows of each, called by hosts and link."""
    links = study("links/speed", "seconds")
    faster = links["4 x 1gbit, low rank: powersgd"] < links["2 x 1gbit, dense"]
    asked(studied(faster, but=None, input="for W = 1"))
    record_tests(something="passed")
    (OUT / "links").mkdir()
    parts = [
        {"hosts": hosts, "link": "1gbit", "rows": [{"method": method, "seconds": seconds}]}
        for hosts, method, seconds in ((2, "dense", 1.5), (4, "low rank: powersgd", 0.5))
    ]
    (OUT / "links/speed.json").write_text(json.dumps({"parts": parts}))
    (row,) = answers(said)
    assert row["basis"] == "tests at abc1234; 2 and 4 hosts at 1gbit"
    assert "dense 1.5, 4 x 1gbit, low rank: powersgd 0.5; 1 of 1 relations hold" in row["evidence"]
    for part, seconds in zip(parts, ([1.4, 1.5, 1.6], [0.5, 1.6, 1.7]), strict=True):
        part["rows"][0]["all_seconds"] = seconds
    (OUT / "links/speed.json").write_text(json.dumps({"parts": parts}))
    (row,) = answers(said)
    assert row["answer"] == "within noise" and "(3 steps)" in row["evidence"]
    (OUT / "links/speed.json").write_text(json.dumps({**parts[1], "rows": []}))
    assert answers(said)[0]["basis"] == "tests at abc1234; 4 hosts at 1gbit"


def test_evidence_says_whose_run_it_is(said, asked) -> None:
    asked(near())
    runs("powersgd/table3_cifar10/sgd", 94.0)
    runs(RANK, 94.0)
    (row,) = answers(said)
    assert "sgd 94 (n=1) (run of powersgd/table3_cifar10/sgd)" in row["evidence"]


def test_overrides_beside_belong_to_the_rows_that_have_their_keys(said, asked) -> None:
    asked(near())
    runs(SGD, 94.0)
    (row,) = answers(said, "with=rank=4")
    assert "accuracy at budget paper with rank=4: sgd 94 (n=1)" in row["evidence"]
    assert "table4=rank_7 rank=4 seed=1,2,3" in row["commands"]
    assert "table4=sgd seed=2,3" in row["commands"]


def test_tables_with_the_same_runs_are_asked_once(said, asked) -> None:
    """At budget=cpu one model stands in for both ResNets, which differ at budget=paper."""
    folders = ["orq/table2_resnet56", "orq/table2_resnet110"]
    asked(near("bingrad_b > sign_sgd", tables=folders))
    for row, accuracies in (("bingrad_b", (35.0, 35.2)), ("sign_sgd", (33.0, 33.1))):
        runs(f"{folders[0]}/{row}", *accuracies, budget="cpu")
        for folder in folders:
            runs(f"{folder}/{row}", *accuracies)
    paper, cpu = (line["evidence"] for line in answers(said))
    assert "; 2 of 2 relations hold" in paper and "same runs" not in paper
    assert "; 1 of 1 relations hold; orq/table2_resnet110 has the same runs" in cpu
    (part,) = read_claims()[0].rows
    evidence = Evidence(find_runs([OUT]).runs, [OUT])
    for budget, tables in (("paper", folders), ("cpu", folders[:1])):
        lacking = missing_runs([(part, budget)], evidence, (1, 2, 3))
        assert [run.experiment for run in lacking] == [
            f"{table}/{row}" for table in tables for row in ("bingrad_b", "sign_sgd")
        ]


def test_runs_over_another_backend_are_runs_of_their_own(here: Path, asked) -> None:
    """The backend is not part of the identity, because only times depend on it."""
    rows = "".join(
        f"  - {{experiment: {SGD}, name: {backend}, backend: {backend}, title: {backend}}}\n"
        for backend in ("gloo", "nccl")
    )
    columns = "columns: {time: {title: Time, unit: ms, measure: step_milliseconds}}\n"
    table = f"title: Backends\nsource: none\n{columns}rows:\n{rows}"
    (here.parent / "table" / "small" / "backends.yaml").write_text(table)
    asked(near("gloo < nccl", measure="step_milliseconds"))
    (part,) = read_claims()[0].rows
    lacking = missing_runs([(part, "paper")], Evidence([], [OUT]), (1,))
    overrides = {run.overrides for run in lacking}
    assert overrides == {("trainer.backend=gloo",), ("trainer.backend=nccl",)}


def test_what_is_kept_answers_again(said, asked) -> None:
    asked(studied(), near())
    record_tests(something="passed")
    write_study(1)
    said("claims", "keep=kept")
    text = Path("kept/claims.md").read_text()
    assert "2 claims, 1 decided: 1 in part, 1 not yet." in text
    assert "- in part: some of what is asked holds" in text and "mind the gap" in text
    command = "`gcbench -m +experiment/powersgd/table4=rank_7,sgd budget=cpu seed=1,2,3`"
    assert f"powersgd-01-near (6 runs; nothing like it has run yet): {command}" in text
    assert said("claims", "format=markdown", "results=kept").strip() == text.strip()


def test_the_terminal_shows_all(said, asked) -> None:
    asked(studied(), near())
    lines = said("claims").splitlines()
    assert sum(line.startswith("powersgd-0") for line in lines) == 2
    assert lines[-1].startswith("2 claims, 0 decided") and len(lines) == 5
    assert all(line.split("  ")[-1].strip().startswith("not yet") for line in lines[1:3])
    text = said("claims", "powersgd-02")
    for words in ("The paper says:", "What would decide", "not yet:", "1 claim,"):
        assert words in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert text == said("claims", "id=powersgd-02")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["claims", "paper=powrsgd"], "type paper=powersgd"),
        (["claims", "id=powersgd-99"], "there is no such claim"),
        (["claims", "budget=cpu"], "budget=cpu: no such key; type results="),
        (["claims", "format=latex"], "format=latex: type format=terminal, markdown, csv"),
        (["claims", "with=bucket_size=128"], "no row of these claims has such a key"),
        (["claims", "id=powersgd-01", "keep=outputs"], "leave out paper= and id="),
        (["runs", "outputs", "results=outputs"], "results=outputs: type the folders either alone"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    said, asked, arguments: list[str], sentence: str
) -> None:
    asked(near())
    with pytest.raises(ConfigError, match=sentence):
        said(*arguments)


def test_a_claim_of_another_paper_is_not_answered() -> None:
    with pytest.raises(ConfigError, match="paper=orq id=qsgd-11: type paper=qsgd, or id= alone"):
        read_claims("orq", "qsgd-11")
    assert [claim.paper for claim in read_claims("qsgd", "qsgd-11")] == ["qsgd"]


def test_a_number_without_its_zero_is_near_the_claim() -> None:
    with pytest.raises(ConfigError, match="id=orq-5: there is no such claim; type .*orq-05"):
        read_claims(name="orq-5")


def recorded(experiment: str, lines: list | None = None, **facts: object) -> RecordedRun:
    result = {**result_of(experiment), **facts}
    return RecordedRun(Result.parse(result), "", lambda: lines or [])


def test_early_is_the_first_tenth_of_the_steps() -> None:
    lines = [{"event": "train", "step": step, "loss": float(step)} for step in (1, 5, 10)]
    assert _early_loss(recorded(SGD, lines, steps=50)) == 3 and _early_loss(recorded(SGD)) is None


def test_the_best_rate_of_a_loss_is_that_of_the_lowest() -> None:
    losses = {0.1: 2.0, 0.2: 1.0, 0.4: 3.0}
    rates = [Rate(lr, {}, [recorded(SGD, test={"loss": v})]) for lr, v in losses.items()]
    grid = Grid(rates, "test", False, "loss", 0.2, [], [])
    found = measure_row(Row(TableRow("SGD"), "paper", grid=grid), "learning_rate").value
    assert found is not None and found.by_seed == {1: 0.2}


def test_a_rate_that_diverged_is_not_the_best() -> None:
    """With seed 2 all rates diverged, so that none is the best."""
    diverged = {"status": "diverged", "test": None}
    rates = [
        Rate(lr, {}, [recorded(SGD, seed=1, **first), recorded(SGD, seed=2, **diverged)])
        for lr, first in ((0.1, {"test": {"accuracy": 9.0}}), (0.2, diverged), (0.4, diverged))
    ]
    grid = Grid(rates, "test", False, "accuracy", 0.1, [], [])
    found = measure_row(Row(TableRow("SGD"), "paper", grid=grid), "learning_rate").value
    assert found is not None and found.by_seed == {1: 0.1}


def test_costs_are_of_all_cores_and_of_rows_like_none_so_far() -> None:
    """A run took 1 h on 2 x 3 cores; a seed of another table is taken to cost the same."""
    claim = next(claim for claim in ALL if not claim.machine)
    kept = recorded(SGD, threads=3, finished="2026-01-01T01:00:00+00:00")
    lacking = [MissingRuns(name, (), "paper", (1, 2)) for name in (SGD, "orq/table2_resnet56/orq")]
    assert describe_cost(claim, lacking[:1], [kept]) == "2 runs, about 12 core-hours"
    assert describe_cost(claim, lacking, [kept]) == "4 runs, about 24 core-hours"


def test_all_tests_of_a_claim_have_to_pass(said, asked) -> None:
    two = [f"papers/test_powersgd.py::test_{name}" for name in ("something", "other")]
    asked(studied(tests=two))
    write_study(1.5)
    record_tests(something="passed", other="failed")
    (row,) = answers(said)
    assert row["answer"] == "not yet" and "passed: papers/test_powersgd.py::test_other" in str(row)


def test_budgets_go_from_the_papers_to_the_smallest(said, asked) -> None:
    asked(near())
    for budget in ("cpu", "cpu_medium", "cpu_long"):
        for experiment in (SGD, RANK):
            runs(experiment, 60.0, 60.2, 60.4, budget=budget)
    bases = [f"budget {budget}" for budget in ("cpu_long", "cpu_medium", "cpu")]
    assert [row["basis"] for row in answers(said)] == bases
