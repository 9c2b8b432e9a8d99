"""The answer of a ladder, sigma / rho: its cells, the picture, the JSON, and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from browser import browser
from results import result_of

from gcbench.papers.figures.figures import figures_of_table
from gcbench.papers.ladder.ladder import Cell
from gcbench.papers.ladder.ladder_fit import Place, place_of
from gcbench.papers.ladder.ladder_map import CS, Answer, answer_of, as_json, c_of, draw_answer
from gcbench.papers.tables import tables
from gcbench.papers.tables.build import groups_of
from gcbench.papers.tables.tables import Table, read_table
from gcbench.runner.config import choices
from gcbench.runner.predict.sigma import UNCOVERED, times_shorter
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun, write_kept

pytestmark = pytest.mark.usefixtures("here")

BEYOND = {"none": 0.0, "bf16": 0.0, "qsgd": 0.002, "diloco": 0.1, "onebit": 0.05}
HERE = Place(29_400, 4, 1)


def loss(place: Place, beyond: float, seed: int) -> float:
    n, _, t = place
    return math.exp(0.8 - 0.4 * math.log10(n / 1e5) - 0.12 * math.log2(t) + beyond + 0.002 * seed)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Return the ladder in conf/, which conftest.py hides, with five of its methods."""
    monkeypatch.setattr(tables, "table_directory", choices.table_directory)
    whole = read_table("modern/ladder")
    return replace(whole, rows=[r for r in whole.rows if _method(str(r.name)) in BEYOND])


def _method(name: str) -> str:
    return name.rsplit("_", 3)[0]


@pytest.fixture
def kept(table: Table) -> list[RecordedRun]:
    """Return runs of up to 100k: with 4 workers at two lengths, and with 16 at one."""
    assert table.ladder
    runs = []
    for row in table.rows:
        place, method = place_of(table.ladder, Cell.of(str(row.name))), _method(str(row.name))
        ran = (place.workers in (1, 4) and place.length <= 4) or place[1:] == (16, 1)
        if place.parameters > 2e5 or not ran or (method == "onebit" and place.length > 1):
            continue
        for seed in (1, 2, 3):
            result = result_of(str(row.experiment), *row.overrides, seed=seed, step_seconds=None)
            result["test"] = {"loss": loss(place, BEYOND[method], seed)}
            result["workers"] = place.workers
            runs.append(RecordedRun(Result.parse(result), f"{row.name}-s{seed}", list))
    return runs


@pytest.fixture
def answer(table: Table, kept: list[RecordedRun]) -> Answer:
    made = answer_of(table, groups_of(table, kept, "paper")["paper"])
    assert made
    return made


def test_a_place_has_the_method_with_the_largest_speed_up(answer: Answer) -> None:
    assert answer.lengths == [1, 2, 4] and answer.dense_label == "bfloat16"
    found = {one.label: one for one in answer.speedups(3, HERE)}
    by_label = {one.label: one for one in answer.contenders}
    qsgd = by_label["QSGD, 4 bits"]
    sigma = times_shorter(answer.dense[4], qsgd.costs[4], 3, answer.workload)
    rho = 2 ** (BEYOND["qsgd"] / 0.12)
    assert found["QSGD, 4 bits"].value == pytest.approx(sigma / rho, rel=1e-2)
    onebit = found["1BitSGD"]  # of which no second length ran
    assert onebit.value is None and onebit.low == 0 and math.isfinite(onebit.high)
    assert answer.best(0.01, HERE).why == "below 1.05"
    far = answer.best(100, Place(29_400, 4, 2))
    assert far.label == "DiLoCo, H = 30"
    sigma = times_shorter(answer.dense[4], by_label[far.label].costs[4], 100, answer.workload)
    assert far.value == pytest.approx(sigma / 2 ** (BEYOND["diloco"] / 0.12), rel=1e-2)
    for place in (Place(310_552, 4, 1), Place(29_400, 64, 1)):
        assert answer.best(10, place).why == UNCOVERED


def test_ticks_are_the_arithmetic_of_a_cluster(answer: Answer) -> None:
    tick = answer.ladder.map.ticks[1]
    c, text = c_of(tick, 8192)
    assert c == pytest.approx(2 * 15 / 16 * 16 / 95e9 * 400e12 / (6 * 8192))
    assert text.endswith(f"(an H100 at 40 %) = {c:.2g}") and "95 Gbit/s" in text


def test_the_picture_and_the_json_have_the_same_answer(
    answer: Answer, table: Table, kept: list[RecordedRun]
) -> None:
    figure = draw_answer(answer)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == [f"{name} parameters, 4 workers" for name in ("30k", "100k", "300k")]
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"not covered", "below 1.05", "DiLoCo, H = 30"} <= legend
    drawn = dict(figures_of_table(table, kept, "paper", (), ()))
    assert {"modern/ladder/map", "modern/ladder/penalty"} == drawn.keys()
    content = json.loads(str(drawn["modern/ladder/map"]))
    assert content == json.loads(json.dumps(as_json(answer)))
    (qsgd,) = (one for one in content["methods"] if one["label"] == "QSGD, 4 bits")
    at = [
        content[name].index(i)
        for name, i in zip(("parameters", "workers", "lengths"), HERE, strict=True)
    ]
    rho = qsgd["rho"][at[0]][at[1]][at[2]]
    assert rho[0] == pytest.approx(2 ** (BEYOND["qsgd"] / 0.12), rel=1e-2)
    assert qsgd["rho"][-1][at[1]][at[2]] is None
    assert qsgd["forms"]["gather"]["same"] and not qsgd["forms"]["scatter_coded"]["same"]
    empty = groups_of(table, kept[:3], "paper")["paper"]
    assert answer_of(table, empty) is None


def test_the_page_says_the_same_for_any_place(
    answer: Answer, kept: list[RecordedRun], said: Callable[..., str], tmp_path: Path
) -> None:
    write_kept(Path("outputs/all.jsonl.xz"), kept)
    said("html")
    content = as_json(answer)
    with browser(tmp_path / "chromium") as page:
        for workers, length in ((4, 1), (16, 0)):
            at = {"answer-c": 30, "answer-length": length}
            at["answer-workers"] = content["workers"].index(workers)
            page.open("about:blank")
            page.open(f"{Path('outputs/report.html').resolve().as_uri()}#{urlencode(at)}")
            cells = "[...document.querySelectorAll('#answer .cell')].map(c => c.dataset.method)"
            expected = [
                verdict.why or verdict.label
                for t in answer.lengths
                for c in CS
                for verdict in [answer.best(c, Place(29_400, workers, t))]
            ]
            names = page.value(cells)
            assert sum(a != b for a, b in zip(names, expected, strict=True)) <= 3  # rounded rho
            order = "[...document.querySelectorAll('#answer-order li')].map(li => li.textContent)"
            place = Place(29_400, workers, answer.lengths[length])
            best = max(answer.speedups(30, place), key=lambda one: one.value or 0)
            assert page.value(order)[0].startswith(f"{best.label}: sigma ")
            sooner = page.value(order)[0].partition(" times sooner [")[0].rpartition(": ")[2]
            assert float(sooner) == pytest.approx(best.value, rel=5e-3)
        assert "1BitSGD: sigma" in " ".join(page.value(order))
        page.value(
            "const slide = document.getElementById('answer-size'); slide.value = slide.max;"
            "slide.dispatchEvent(new Event('input'))"
        )
        assert "answer-size=" in page.value("location.hash")
        assert {*page.value(cells)} == {"not covered"}
        assert "At the circle: not covered." in page.value(
            "document.getElementById('answer-note').textContent"
        )
        assert page.problems == []
