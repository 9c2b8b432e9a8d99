"""`gcbench claims`: the claims, and the answers to made-up results."""

from __future__ import annotations

import csv
import inspect
import io
import json
from importlib import import_module
from pathlib import Path

import pytest
from results import result_of, write

from gcbench.config import ConfigError, conf_directory
from gcbench.report import claims
from gcbench.report.claims import Claim, read_claims
from gcbench.report.claims_relations import Value, Verdict, judge, read_relations
from gcbench.studies.study import names

SGD, RANK = "powersgd/table4/sgd", "powersgd/table4/rank_7"
OUT = Path("outputs")
CLAIM = """
- id: powersgd-01-near
  paper: powersgd
  where: table 4
  claim: Rank 7 is near SGD.
  expect: within 1
  caution: mind the gap
  needs: short
  check:
    rows:
      - {{measure: {measure}, of: powersgd/table4, hold: ["{hold}"]}}
"""
STUDIED = """
- id: powersgd-02-studied
  paper: powersgd
  where: section 5
  claim: It is fast.
  expect: less than 2
  caution: null
  needs: cpu
  but: "for W = 1"
  check:
    tests: [papers/test_powersgd.py::test_something]
    study:
      - {name: speed, column: time, hold: ['"Rank 2, W=4" < 2']}
"""


@pytest.fixture
def asked(here: Path, monkeypatch: pytest.MonkeyPatch):
    """Put claims in the place of the papers'."""

    def put(text: str) -> None:
        (here / "claims.yaml").write_text(text)
        monkeypatch.setattr(claims, "claims_file", lambda: here / "claims.yaml")

    return put


def runs(experiment: str, *accuracies: float, budget: str = "paper", **settings: object) -> None:
    for seed, accuracy in enumerate(accuracies, 1):
        result = result_of(experiment, budget=budget, seed=seed, accuracy=accuracy, **settings)  # type: ignore[arg-type]
        write(OUT / f"{experiment}-{budget}-s{seed}-{settings.get('status', 'done')}", result)


def answers(said, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(said("claims", "format=csv", *words))))


def near(hold: str = "rank_7 > sgd - 1", measure: str = "accuracy") -> str:
    return CLAIM.format(hold=hold, measure=measure)


ALL = read_claims()


def test_there_are_seventy_of_five_papers() -> None:
    assert len({claim.id for claim in ALL}) == len(ALL) == 70
    counts = {
        paper: sum(claim.paper == paper for claim in ALL)
        for paper in {claim.paper for claim in ALL}
    }
    assert counts == {"qsgd": 16, "powersgd": 17, "orq": 14, "maxnorm": 11, "ecqsgd": 12}


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.id)
def test_what_a_claim_asks_for_is_there(claim: Claim) -> None:
    check = claim.check
    assert check.tests or check.rows or check.study or check.open
    for study in check.study:
        assert study.name in names() and study.relations
        module = import_module(f"gcbench.studies.{study.name}")
        assert f'"{study.column}"' in inspect.getsource(module)
        tables = [
            conf_directory() / "table" / f"{table}.yaml"
            for table in study.of
            if table not in ("", claim.paper)
        ]
        assert all(path.is_file() for path in tables)


@pytest.mark.parametrize(
    ("text", "a", "b", "verdict"),
    [
        ("a > b", (3, 0.5), (1, 0.5), Verdict.REPRODUCED),
        ("a > b", (3, 2.0), (1, 2.0), Verdict.NOISE),
        ("a > b + 4", (3, 0.5), (1, 0.5), Verdict.REFUTED),
        ("a > b + 2.1", (3, 0.5), (1, 0.5), Verdict.NOT_DECIDED),
        ("a >= b + 2.1", (3, 0.5), (1, 0.5), Verdict.NOISE),
        ("a < b", (3, 0.5), (1, 0.5), Verdict.REFUTED),
        ("a > 2 * b", (3, 0.1), (1, 0.1), Verdict.REPRODUCED),
        ("b < a - 1.5", (3, 0.1), (1, 0.1), Verdict.REPRODUCED),
        ("a ~ b within 3", (3, 0.1), (1, 0.1), Verdict.REPRODUCED),
        ("a ~ b within 1", (3, 0.1), (1, 0.1), Verdict.REFUTED),
        ("a ~ b within 0", (3, 0.0), (3, 0.0), Verdict.REPRODUCED),
        ("a > b", (3, None), (1, 0.1), Verdict.NOISE),
        ("a < b", (3, None), (1, 0.1), Verdict.NOT_DECIDED),
        ("a < b", (float("inf"), 0.0), (1, None), Verdict.REFUTED),
        ("a >= b + 2.1", (3, float("inf")), (1, 0.1), Verdict.NOT_DECIDED),
        ("a >= b + 2.1", (3, None), (1, 0.1), Verdict.NOT_DECIDED),
    ],
)
def test_a_relation_is_weighed_against_the_spread_of_seeds(
    text: str, a: tuple, b: tuple, verdict: Verdict
) -> None:
    (relation,) = read_relations(text)
    assert judge(relation, {"a": Value(*a), "b": Value(*b)}).verdict is verdict
    assert judge(relation, {"a": Value(*a)}).verdict is Verdict.NOT_YET


def test_chains_alternatives_and_quotes() -> None:
    assert [r.text for r in read_relations("a < b < c")] == ["a < b", "b < c"]
    assert [r.text for r in read_relations('"x, W=2", 4bit > t/c, d + 0.5')] == [
        "x, W=2 > t/c",
        "x, W=2 > d + 0.5",
        "4bit > t/c",
        "4bit > d + 0.5",
    ]
    (gap,) = read_relations("a - 2 * b > c - d + 1")
    assert gap.difference == {"a": 1, "b": -2, "c": -1, "d": 1, "": -1}
    for wrong in ("a", "a > b; c", "a < b < c within 2"):
        with pytest.raises(ConfigError):
            read_relations(wrong)


@pytest.mark.parametrize(
    ("sgd", "rank", "answer"),
    [
        ((94.0, 94.2, 94.4), (94.1, 94.3, 94.5), "reproduced"),
        ((94.0, 95.0, 96.0), (93.5, 94.5, 95.5), "reproduced within noise"),
        ((94.0, 95.0, 96.0), (92.5, 93.5, 94.5), "not decided"),
        ((94.0, 94.2, 94.4), (90.1, 90.3, 90.5), "refuted"),
        ((94.0, 94.2, 94.4), (94.1,), "reproduced"),  # the deviation of the others
        ((94.0,), (94.0,), "reproduced within noise"),
        ((94.0,), (10.0,), "not decided"),
        ((94.0, 94.2, 94.4), (), "not yet"),
    ],
)
def test_means_over_seeds_against_their_spread(said, asked, sgd, rank, answer: str) -> None:
    asked(near())
    runs(SGD, *sgd)
    runs(RANK, *rank)
    (row,) = answers(said)
    assert row["answer"] == answer and row["caution"] == "mind the gap"
    assert f"(n={len(sgd)})" in row["evidence"] and "accuracy at budget paper" in row["evidence"]
    missing = {"not yet": "gcbench -m +experiment/powersgd/table4=rank_7 seed=1,2,3"}
    few = (
        "gcbench -m +experiment/powersgd/table4=rank_7,sgd seed=1,2,3"
        if len(sgd) == 1 and answer == "not decided"
        else ""
    )
    assert row["commands"] == missing.get(answer, few)


def test_budgets_answer_by_themselves(said, asked) -> None:
    asked(near())
    runs(SGD, 94.0, 94.2, 94.4)
    runs(RANK, 60.0, 60.2, 60.4, budget="cpu")
    assert [row["answer"] for row in answers(said)] == [
        "not yet",
        "not yet",
    ]  # a row of each, and nothing to compare
    runs(SGD, 50.0, 50.2, 50.4, budget="cpu")
    cpu, paper = answers(said)
    assert (cpu["answer"], cpu["basis"], paper["answer"]) == ("reproduced", "budget cpu", "not yet")
    assert "resnet8 in place of the paper's" in cpu["evidence"] and "94" not in cpu["evidence"]
    assert "reproduced, at budget cpu (an indication) |" in said("claims", "format=markdown")
    runs(RANK, 90.0, 90.2, 90.4)
    assert [(row["answer"], row["basis"]) for row in answers(said)] == [
        ("refuted", "budget paper"),
        ("reproduced", "budget cpu"),
    ]
    assert "1 claim: 1 refuted (1 at budget paper)." in said("claims", "format=markdown")


def test_measures_of_one_budget_leave_the_answer_at_another_to_the_rest(said, asked) -> None:
    times = (
        "      - {measure: step_milliseconds, of: powersgd/table4, budgets: [paper], "
        "hold: ['rank_7 < sgd']}\n"
    )
    asked(near() + times)
    for experiment in (SGD, RANK):
        runs(experiment, 60.0, 60.1, budget="cpu")
    (row,) = answers(said)
    assert (
        row["answer"] == "reproduced"
        and "step milliseconds is not asked at budget cpu" in row["evidence"]
    )


@pytest.mark.parametrize(
    ("budget", "elsewhere", "answer"),
    [
        ("paper", "false", "refuted"),
        ("paper", "true", "not decided"),
        ("cpu", "false", "not decided"),
    ],
)
def test_a_stand_in_refutes_nothing(said, asked, budget: str, elsewhere: str, answer: str) -> None:
    asked(near().replace("of: powersgd/table4", f"of: powersgd/table4, elsewhere: {elsewhere}"))
    runs(SGD, 60.0, 60.1, budget=budget)
    runs(RANK, 50.0, 50.1, budget=budget)
    (row,) = answers(said)
    assert row["answer"] == answer and "violated: rank_7 > sgd - 1" in row["evidence"]


def test_a_stand_in_waits_for_all_its_rows(said, asked) -> None:
    asked(near('rank_7 > sgd - 1", "rank_2 > sgd - 1'))
    runs(SGD, 60.0, 60.1, budget="cpu")
    runs(RANK, 50.0, 50.1, budget="cpu")
    assert [row["answer"] for row in answers(said)] == ["not yet"]


def test_what_diverged_is_worse_than_any_number(said, asked) -> None:
    asked(near("rank_7 > sgd + 10"))
    runs(RANK, 94.0, 94.2)
    runs(SGD, 95.0, status="diverged", reason="not finite")
    (row,) = answers(said)
    assert row["answer"] == "reproduced" and "sgd diverged (n=1)" in row["evidence"]
    asked(near("sgd > rank_7", "loss"))
    assert answers(said)[0]["answer"] == "reproduced"


def test_some_seeds_that_diverged_leave_nothing_above_noise(said, asked) -> None:
    asked(near())
    runs(SGD, 94.0, 94.2)
    runs(RANK, 94.0, 94.1)
    write(
        OUT / "bad", result_of(RANK, seed=3, accuracy=10.0, status="diverged", reason="not finite")
    )
    (row,) = answers(said)
    assert row["answer"] == "reproduced within noise" and "seed 3 diverged" in row["evidence"]


def test_failed_runs_have_no_value(said, asked) -> None:
    asked(near())
    runs(SGD, 94.0, 94.2)
    runs(RANK, 94.0, status="failed", reason="out of memory")
    (row,) = answers(said)
    assert row["answer"] == "not yet" and "seed 1 failed: rank_7" in row["evidence"]
    assert row["commands"].endswith("table4=rank_7 seed=1,2,3")


def test_exact_measures_need_no_seeds(said, asked) -> None:
    asked(near("rank_7 > sgd", "ratio"))
    runs(SGD, 94.0, ratio=1.0)
    runs(RANK, 94.0, ratio=40.0)
    assert answers(said)[0]["answer"] == "reproduced"


def test_the_best_of_a_sweep(said, asked) -> None:
    asked(near("rank_7 ~ sgd within 0", "learning_rate"))
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
    assert "table4=rank_7 optimizer.lr=0.025,0.1,0.4 seed=1,2,3" in row["commands"]
    write(OUT / "last", result_of(RANK, "optimizer.lr=0.4", accuracy=94.0))
    assert answers(said)[0]["answer"] == "refuted"


@pytest.mark.parametrize(
    ("time", "answer"), [(1.5, "reproduced"), ([1.4, 1.6, 5.4], "not decided"), (2.5, "refuted")]
)
def test_tests_and_studies(said, asked, time: object, answer: str) -> None:
    asked(STUDIED)
    (row,) = answers(said)
    assert row["answer"] == "not yet" and row["commands"] == "gcbench study speed"
    (OUT / "studies").mkdir()
    study = {"study": "speed", "rows": [{"row": "Rank 2, W=4", "time": time}]}
    (OUT / "studies/speed.json").write_text(json.dumps(study))
    (row,) = answers(said)
    assert (
        row["answer"] == answer
        and row["basis"] == "tests; study"
        and "papers/test_powersgd.py::" in row["evidence"]
    )
    assert (
        "reproduced in part (but not for W = 1), by tests and by a study"
        in said("claims", "format=markdown")
    ) == (answer == "reproduced")


def test_rows_of_a_study_of_several_tables(said, asked) -> None:
    asked(STUDIED.replace("name: speed", "name: speed, of: [small/one, small/two]"))
    (OUT / "studies").mkdir()
    rows = [
        {"row": "Rank 2, W=4", "table": f"small/{name}", "time": time}
        for name, time in (("one", 1.5), ("two", 3.0))
    ]
    (OUT / "studies/speed.json").write_text(json.dumps({"study": "speed", "rows": rows}))
    (row,) = answers(said)
    assert (
        row["answer"] == "refuted"
        and "one/Rank 2, W=4 1.5, two/Rank 2, W=4 3; 1 of 2 relations hold" in row["evidence"]
    )


def test_evidence_says_whose_run_it_is(said, asked) -> None:
    asked(near())
    runs("powersgd/table3_cifar10/sgd", 94.0)
    runs(RANK, 94.0)
    (row,) = answers(said)
    assert "sgd 94 (n=1) (run of powersgd/table3_cifar10/sgd)" in row["evidence"]


def test_what_is_kept_answers_again(said, asked) -> None:
    asked(STUDIED + near())
    (OUT / "studies").mkdir()
    (OUT / "studies/speed.json").write_text(
        json.dumps({"study": "speed", "rows": [{"row": "Rank 2, W=4", "time": 1}]})
    )
    said("claims", "keep=outputs")
    text = (OUT / "claims.md").read_text()
    assert "2 claims: 1 reproduced in part (1 by tests, 1 by a study), 1 not yet." in text
    assert (
        "`gcbench -m +experiment/powersgd/table4=rank_7,sgd seed=1,2,3`" in text
        and "mind the gap" in text
    )
    (OUT / "studies/speed.json").unlink()
    assert said("claims", "format=markdown", "results=outputs").strip() == text.strip()


def test_the_terminal_shows_all(said, asked) -> None:
    asked(STUDIED + near())
    text = said("claims")
    assert (
        "PowerSGD" in text
        and "powersgd-01" in text
        and "What would decide" in text
        and "2 claims:" in text
    )
    assert "1 claim:" in said("claims", "id=powersgd-02")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["claims", "paper=powrsgd"], "type paper=powersgd"),
        (["claims", "id=powersgd-99"], "there is no such claim"),
        (["claims", "budget=cpu"], "budget=cpu: no such key; type results="),
        (["claims", "format=latex"], "format=latex: type format=terminal, markdown, csv"),
        (["claims", "id=powersgd-01", "keep=outputs"], "leave out paper= and id="),
        (["runs", "paper=powersgd"], "paper=powersgd: no such key; type results="),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    said, asked, words: list[str], sentence: str
) -> None:
    asked(near())
    with pytest.raises(ConfigError, match=sentence):
        said(*words)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("measure: accuracy", "measure: accuracies", "type accuracy"),
        ("needs: short", "needs: long", "type one of exact"),
        ("caution:", "cautoin:", "type caution"),
        ("  expect: within 1\n", "", "missing"),
    ],
)
def test_mistakes_in_the_file_are_named(
    said, asked, before: str, after: str, sentence: str
) -> None:
    asked(near().replace(before, after))
    with pytest.raises(ConfigError, match=sentence):
        said("claims")


def test_deviations_of_a_difference_add_up_as_squares() -> None:
    """0.3 and 0.4 make 0.5, and twice 0.3 makes 0.6: less than that is noise."""
    a, b = Value(1.0, 0.3), Value(0.6, 0.4)
    (plain,) = read_relations("a > b")
    judged = judge(plain, {"a": a, "b": b})
    assert judged.spread == pytest.approx(0.5) and judged.margin == pytest.approx(0.4)
    assert judged.verdict is Verdict.NOISE
    assert judge(plain, {"a": a, "b": b._replace(mean=0.45)}).verdict is Verdict.REPRODUCED
    (twice,) = read_relations("2 * a > b")
    assert judge(twice, {"a": a, "b": Value(0.0, 0.0)}).spread == pytest.approx(0.6)
