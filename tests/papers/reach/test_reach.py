"""Time to a score on links and with workers that did not run: the page, the map, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from browser import browser
from results import result_of

from gcbench.core.conf import conf_directory, read_yaml
from gcbench.papers.reach import reach_map
from gcbench.papers.reach.reach import RATES, WORKERS, Race, link_at, race_of
from gcbench.papers.reach.reach_map import measured_links
from gcbench.papers.tables.build import groups_of
from gcbench.papers.tables.tables import read_table
from gcbench.runner.network import Link
from gcbench.runner.predict.devices import read_device
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun, write_kept

pytestmark = pytest.mark.usefixtures("here")

TABLE = """
title: Time to a perplexity
source: gcbench
spread: deviation
reach:
  targets: {cpu: [40, 37, 20]}
  networks: [1gbit, 100mbit]
  workers: [4, 64]
  compute_seconds: 0.02
  device: cpu
columns:
  perplexity: {title: Perplexity, measure: perplexity, better: lower, digits: 1}
rows:
  - {experiment: modern/gpt/none, title: Dense}
  - {experiment: modern/gpt/fp16, title: Half}
  - {experiment: modern/gpt/qsgd, title: QSGD}
  - {experiment: modern/gpt/local_8, title: Local}
"""
CURVES = {  # perplexity after each epoch, by seed
    "none": [(60, 52, 44, 36), (60, 52, 43, 36.5)],
    "fp16": [(60, 52, 44, 36), (60, 52, 43, 36.5)],
    "qsgd": [(60, 52, 44.5, 36.5), (61, 52, 44, 37)],
    "local_8": [(62, 56, 48, 36), (62, 56, 46, 39)],
}
EPOCHS = {  # to 40: interpolated by hand
    "none": (3 + 4 / 8, 3 + 3 / 6.5),
    "qsgd": (3 + 4.5 / 8, 3 + 4 / 7),
    "local_8": (3 + 8 / 12, 3 + 6 / 7),
}
VALUES, STEPS = 660_992, 10  # of gpt_tiny with 2,000 words; steps of an epoch


def run(name: str, seed: int, scores: Sequence[float]) -> RecordedRun:
    result = result_of(f"modern/gpt/{name}", budget="cpu", seed=seed, step_seconds=None)
    result["test"] = {"perplexity": scores[-1]}
    result["workers"] = 4
    lines = [
        {"event": "test", "step": STEPS * e, "epoch": float(e), "perplexity": score}
        for e, score in enumerate(scores, start=1)
    ]
    return RecordedRun(Result.parse(result), f"{name}-s{seed}", lambda: lines)


@pytest.fixture
def kept(here: Path) -> list[RecordedRun]:
    (here.parent / "table" / "small" / "reach.yaml").write_text(TABLE)
    runs = [
        run(name, seed, scores)
        for name, every in CURVES.items()
        for seed, scores in enumerate(every, start=1)
    ]
    write_kept(here / "outputs" / "all.jsonl.xz", runs)
    return runs


@pytest.fixture
def race(kept: list[RecordedRun]) -> Race:
    table = read_table("small/reach")
    race = race_of(table, groups_of(table, kept, "cpu")["cpu"])
    assert race is not None
    return race


def coding(family: str) -> float:
    by_size = read_yaml(conf_directory() / "devices" / "cpu.yaml")["codecs"][family]
    sizes = by_size["aggregate_seconds"]
    return float(np.interp(VALUES, list(sizes), list(sizes.values())))


def all_reduce(bits: float, workers: int, rate: float) -> float:
    return 2 * (workers - 1) * (50e-6 + 32 * VALUES * bits / 32 / workers / (0.95 * rate))


def test_seconds_are_steps_times_computation_coding_and_exchange(
    kept: list[RecordedRun], said: Callable[..., str]
) -> None:
    dense = np.mean(EPOCHS["none"]) * STEPS * (0.02 + coding("none") + all_reduce(32, 4, 1e9))
    half = np.mean(EPOCHS["none"]) * STEPS * (0.02 + coding("fp16") + all_reduce(16, 4, 1e9))
    hidden = all_reduce(16, 4, 1e9) - max(
        all_reduce(16, 4, 1e9) - 2 / 3 * read_device("cpu").backward_share * 0.02,
        all_reduce(16, 4, 1e9) / 3,
    )
    under = half - np.mean(EPOCHS["none"]) * STEPS * hidden
    local = (0.02 + (coding("none") + all_reduce(32, 4, 1e9)) / 8) * STEPS
    local *= np.mean(EPOCHS["local_8"])
    rows: dict[str, str] = {}
    for line in said("table=small/reach", "budget=cpu", "format=markdown").splitlines():
        title = line.split("|")[1].strip() if line.startswith("| ") else ""
        rows[title] = rows.get(title, "") + " ".join(line.split())
    assert f"{dense:.3g} s: 1.00, {half / dense:.2f}, {under / dense:.2f}" in rows["40: Dense"]
    assert f"{1e3 * local:.3g} ms: {dense / local:.2f}, {half / local:.2f}" in rows["40: Local"]
    assert "3.48" in rows["40: Dense"] and "3.76" in rows["40: Local"]
    # A seed of Local never reaches 37, and no run was made for 20.
    assert "never" in rows["37: Local"] and "never" not in rows["37: Dense"]
    assert "20: Dense" not in rows
    received = np.mean(EPOCHS["none"]) * STEPS * 1.5 * 32 * VALUES / 8 / 2**20
    assert f"{received:.0f}" in rows["40: Dense"]


def test_many_workers_have_another_exchange(race: Race) -> None:
    qsgd = next(one for one in race.contenders if one.label == "QSGD")
    link = link_at(1e9)
    own, best = (race.step(qsgd, 64, link, best) for best in (False, True))
    assert (own[0], best[0]) == ("gather", "scatter_coded")
    assert own[1].step_seconds > 5 * best[1].step_seconds
    dense = race.step(race.contenders[0], 64, link)[1]
    assert own[1].exchange_seconds > dense.exchange_seconds  # its ratio of 7 is no gain


def test_the_first_is_sure_only_where_no_seeds_overlap(race: Race) -> None:
    slow = race.first(40, 4, link_at(1e7))
    assert slow and slow.sure and slow.margin > 1.05
    times = {
        one.label: [s * race.step(one, 4, link_at(1e7))[1].step_seconds for s in steps]
        for one in (*race.contenders, *race.overlapped)
        if (steps := one.steps[40])
    }
    means = sorted((float(np.mean(times[name])), name) for name in times)
    assert (slow.label, slow.next_label) == (means[0][1], means[1][1])
    assert slow.margin == pytest.approx(means[1][0] / means[0][0])
    fast = race.first(40, 4, Link(1e12))
    assert fast and not fast.sure  # the same curves as Half have
    assert race.targets == [40, 37]


def test_the_map_is_drawn_and_written_as_json(
    kept: list[RecordedRun], race: Race, said: Callable[..., str], here: Path
) -> None:
    table = here / "outputs" / "results" / "links" / "one.json"
    table.parent.mkdir(parents=True)
    table.write_text(json.dumps({"parts": [{"link": "1gbit", "hosts": 2}, {"link": "open"}]}))
    assert measured_links(["outputs"]) == {("1gbit", 2)}
    files = said("figure=small/reach", "budget=cpu").split()
    assert Path(files[0]).suffix == ".svg" and files[1:3] == [".png", ".pdf"]
    assert all(Path(files[0]).with_suffix(kind).stat().st_size for kind in files[1:3])
    content = json.loads(Path(files[3]).read_text())
    place = np.searchsorted(content["rates"], 1e8)
    first = race.first(40, 4, link_at(content["rates"][place]))
    cell = content["maps"]["40"][content["workers"].index(4)][place]
    assert first and cell[0] == first.label and cell[1] == pytest.approx(first.margin, rel=1e-3)
    qsgd = next(method for method in content["methods"] if method["label"] == "QSGD")
    (seeds,) = qsgd["curves"]  # of one length
    assert [curve[1] for curve in seeds] == [list(scores) for scores in CURVES["qsgd"]]
    assert said("figure=small/reach", "budget=bits").startswith("small/reach/map: no run of")


def test_the_page_draws_the_same_map_for_any_computation(
    kept: list[RecordedRun], race: Race, said: Callable[..., str], tmp_path: Path
) -> None:
    said("html")
    page_file = Path("outputs/report.html").resolve().as_uri()
    rate = 10 ** (7.5 + 8 / 16)
    with browser(tmp_path / "chromium") as page:
        for compute in (0.02, 0.2):
            at = {
                "map-target": 40,
                "map-compute": 1e3 * compute,
                "map-link": rate,
                "map-workers": 64,
            }
            page.open("about:blank")
            page.open(f"{page_file}#{urlencode(at)}")
            settings = replace(race.settings, compute_seconds=compute)
            ours = replace(race, settings=settings)
            cells = "[...document.querySelectorAll('#map .cell')].map(c => c.dataset.method)"
            names = page.value(cells)
            expected = []
            for workers in WORKERS:
                for here in RATES[:57]:
                    first = ours.first(40, workers, link_at(here))
                    assert first
                    expected.append(first.label if first.sure else "seeds overlap")
            assert names == expected and len(set(names)) > 1
            order = "[...document.querySelectorAll('#map-order li')].map(li => li.textContent)"
            first = ours.first(40, 64, link_at(rate))
            assert first and page.value(order)[0].split(" (")[0].split(":")[0] == first.label
            assert "scatter_coded" in " ".join(page.value(order))
        page.value(
            "const slide = document.getElementById('map-target'); slide.value = 20.5;"
            "slide.dispatchEvent(new Event('input'))"
        )
        assert "map-target=" in page.value("location.hash")
        assert (
            page.value(
                "new Set([...document.querySelectorAll('#map .cell')]"
                ".map(c => c.dataset.method)).size"
            )
            == 1
        )
        assert "No kept run has a schedule that ends at 33.3" in page.value(
            "document.getElementById('map-note').textContent"
        )
        assert page.problems == []


def test_a_larger_model_on_the_page_sends_and_computes_more_and_loses_what_the_ladder_says(
    kept: list[RecordedRun],
    said: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At ten times the parameters QSGD's perplexity is 1.08 times as high, up to 40."""
    monkeypatch.setattr(
        reach_map, "_slopes", lambda table, runs: [("QSGD", log(1.08))] if table.reach else []
    )
    for one in kept:
        one.result = one.result.model_copy(update={"parameters": VALUES})
    write_kept(Path("outputs/all.jsonl.xz"), kept)
    said("html")
    at = {"map-target": 40, "map-size": 10 * VALUES, "map-link": 1e9, "map-workers": 4}
    with browser(tmp_path / "chromium") as page:
        page.open(f"{Path('outputs/report.html').resolve().as_uri()}#{urlencode(at)}")
        text = "[...document.querySelectorAll('#map-order li')].map(li => li.textContent)"
        seconds = {
            said.split(":")[0].split(" (")[0]: float(said.split(": ")[1].split(" s")[0])
            for said in page.value(text)
        }
        bits = all_reduce(32, 4, 1e9) - 6 * 50e-6
        step = 0.2 + 10 * coding("none") + 6 * 50e-6 + 10 * bits
        assert seconds["Dense"] == pytest.approx(np.mean(EPOCHS["none"]) * STEPS * step, rel=5e-3)
        note = page.value("document.getElementById('map-note').textContent")
        assert "Not in the ladder, so as good as here with any size: Half, Local" in note
        others = {"map-target": 40 / 1.08, "map-size": VALUES}
        page.open("about:blank")
        page.open(f"{Path('outputs/report.html').resolve().as_uri()}#{urlencode(at | others)}")
        here = "document.querySelector('#map-order li[data-method=QSGD]').textContent"
        before = float(page.value(here).split(": ")[1].split(" s")[0])
        methods = next(reach_map.races_of(kept))["methods"]
        (qsgd,) = (method for method in methods if method["label"] == "QSGD")
        messages, bits, code = qsgd["costs"]["gather"][4]
        steps = before / (0.02 + code + messages * 50e-6 + bits / 0.95e9)
        step = 0.2 + 10 * code + messages * 50e-6 + 10 ** qsgd["power"] * bits / 0.95e9
        assert seconds["QSGD"] == pytest.approx(steps * step, rel=2e-2)
        assert 0.9 < qsgd["power"] < 1
        assert page.problems == []


def test_each_method_has_the_length_of_training_that_is_there_first(
    kept: list[RecordedRun],
) -> None:
    """A schedule that was made for a lower score passes this one later than it need be passed."""
    table = read_table("small/reach")
    rows = groups_of(table, kept, "cpu")["cpu"]
    curves = {"none": (60, 58, 56, 54, 41, 30), "qsgd": (50, 41, 38, 36, 33, 30)}
    longer = [
        replace(
            row, runs=[run(name, seed, curves[name]) for seed in (1, 2)] if name in curves else []
        )
        for row, name in zip(rows, CURVES, strict=True)
    ]
    race = race_of(table, rows, [longer])
    assert race
    dense, _, qsgd, _ = race.contenders
    assert dense.steps[40] == [STEPS * epochs for epochs in EPOCHS["none"]]
    assert qsgd.steps[40] == [STEPS * (2 + 1 / 3)] * 2
