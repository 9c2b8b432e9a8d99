"""`gcbench report html` in a real browser: it shows the results, and runs no code from them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browser import Page, browser
from needed import patience
from pandas import DataFrame
from results import result_of

import gcbench
from gcbench.core.errors import ConfigError
from gcbench.papers.tables.configs import tables_by_identity
from gcbench.papers.tables.report import answers, races, report
from gcbench.runner.drawing import COLORS, FAMILIES
from gcbench.runner.network import Network
from gcbench.runner.predict.devices import read_device, read_link
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun, find_runs, write_kept
from gcbench.runner.report.figures.series import Workload
from gcbench.runner.report.page import (
    _predicted_coding,
    _predicted_computation,
    _run,
    build_page,
    collect,
)

pytestmark = pytest.mark.usefixtures("here")

KEPT = Path(__file__).parents[3] / "outputs"
SGD, RANK_7 = "powersgd/table4/sgd", "powersgd/table4/rank_7"
SEEDS = {SGD: (94.0, 94.6, 95.3), RANK_7: (93.0, 91.0)}  # accuracy by seed
RATIO = {SGD: 1.0, RANK_7: 8.0}
PHASES = ("data", "forward", "backward", "update")
STEPS = (10, 20, 30)  # at which tests are run, each one point better than the last
EVIL = (
    """</script><script>document.title = "owned"</script>"""
    """<img src=x onerror="document.title='owned'">"""
)


def run(
    experiment: str, seed: int, accuracy: float, *overrides: str, ratio: float = 0, **facts: Any
) -> RecordedRun:
    """Return a run of two workers that summed gradients in one message per step."""
    facts |= {"seed": seed, "accuracy": accuracy, "ratio": ratio or RATIO[experiment]}
    result = result_of(experiment, *overrides, **facts)
    sent = result["bits_sent"]["per_worker"]
    result["seconds"] |= {phase: {"mean": 0.02, "max": 0.02} for phase in PHASES}
    result["collectives"] = [
        {"level": "all", "collective": "all_reduce", "workers": 2, "messages": 10}
        | {f"{kind}_bits": sent for kind in ("sent", "received", "wire")}
    ]
    per_step = result["bits_sent"]["per_step"]
    lines: list[dict[str, Any]] = []
    for i, step in enumerate(STEPS):
        at = {"step": step, "epoch": step / 10}
        lines += [
            {"event": "train", "loss": 2.0 / step, "bits_sent_per_worker": per_step * step} | at,
            {"event": "test", "accuracy": accuracy - 2 + i, "loss": 1.0} | at,
        ]
    return RecordedRun(Result.parse(result), f"{experiment}-s{seed}", lambda: lines)


def broken_by_somebody() -> RecordedRun:
    result = result_of("powersgd/table4/sign_norm", status="failed", reason=EVIL)
    result["choices"]["model"] = EVIL
    return RecordedRun(Result.parse(result), EVIL.replace("/", ""), list)


@pytest.fixture
def frame(here: Path) -> DataFrame:
    """Write the page to outputs/report.html, and return its runs."""
    runs = [run(name, i + 1, a) for name, scores in SEEDS.items() for i, a in enumerate(scores)]
    runs += [run(SGD, 1, 60.0, budget="cpu"), broken_by_somebody()]
    write_kept(here / "outputs" / "all.jsonl.xz", runs)
    report(["html"])
    return gcbench.load_runs("outputs")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def look(page: Page, **state: str) -> None:
    """Open the page with its controls in this state."""
    page.problems.clear()
    page.open("about:blank")
    page.open(f"{Path('outputs/report.html').resolve().as_uri()}#{urlencode(state)}")


def texts(page: Page, selector: str) -> list[str]:
    return list(page.value(f"[...document.querySelectorAll({selector!r})].map(n => n.textContent)"))


def values(page: Page, table: str, column: int) -> dict[str, float]:
    """Return the numbers of a table's column by method."""
    rows = f"[...document.querySelectorAll('#{table} tbody tr')]"
    number = f"Number(row.cells[{column}].dataset.value)"
    return dict(
        page.value(f"Object.fromEntries({rows}.map(row => [row.dataset.method, {number}]))")
    )


def test_the_page_shows_what_the_data_frame_says(frame: DataFrame, chromium: Page) -> None:
    look(chromium, budget="paper", model="resnet18")
    of_page = frame[(frame.budget == "paper") & (frame.status == "done")]
    methods = of_page.groupby("compressor")
    assert len(texts(chromium, "#curves .curve")) == len(methods) == 2
    assert len(texts(chromium, "#trade .point")) == 2
    assert sorted(map(int, texts(chromium, "#trade .seeds"))) == sorted(methods.size())
    headings = texts(chromium, "#runs thead th")
    for heading, column in (("Accuracy, %", "accuracy"), ("Ratio, metered", "ratio")):
        shown = values(chromium, "runs", headings.index(heading))
        assert shown == pytest.approx(dict(methods[column].mean()))
    assert values(chromium, "runs", headings.index("Seeds")) == dict(methods.size())
    assert "94.63 [94, 95.3]" in texts(chromium, "#runs tbody tr:first-child td")
    assert texts(chromium, "#curves svg text")[-2:] == [
        "Sent by a worker (MiB)",
        "Test accuracy (%)",
    ]
    assert chromium.problems == []


def test_time_to_a_goal_on_a_link(frame: DataFrame, chromium: Page) -> None:
    look(chromium, budget="paper", goal="92.5", link="100gbit", rate="0.001", axis="link")
    shown = values(chromium, "goal-table", 2)
    link = read_link("network", "100gbit")
    slow = Network(2, 1, link, type(link)(1e6, link.latency_seconds))
    bits = frame[frame.status == "done"].groupby("compressor").parameters.first() * 32
    step = 4 * 0.02 + 2 * 0.05 + slow.seconds("all_reduce", bits["none"])
    # SGD reaches 92.5 between two tests, and at the first, twice; a seed of rank 7 never does.
    steps = ((STEPS[0] + STEPS[1]) / 2 + STEPS[0] + STEPS[0]) / 3
    assert shown == {"none": pytest.approx(steps * step, rel=1e-4)}
    assert texts(chromium, "#goal-missing") == ["Not reached by every seed: powersgd."]
    assert texts(chromium, "#curves svg text")[-2] == "Time on the link below (s)"
    assert chromium.problems == []


def test_a_seed_that_is_not_finite_at_a_test_leaves_out_that_test_only(
    here: Path, chromium: Page
) -> None:
    runs = [run(SGD, 1, 90.0), run(SGD, 2, 94.0)]
    next(line for line in runs[1].read_metrics() if line["event"] == "test")["accuracy"] = None
    write_kept(here / "outputs" / "all.jsonl.xz", runs)
    report(["html"])
    look(chromium, axis="step")
    band = "bandOf(data.settings[0].methods[0], 'accuracy', 'step', null)"
    assert chromium.value(f"{band}.map(point => [point.x, point.y])") == [[20, 91], [30, 92]]
    assert chromium.problems == []


def test_speed_ups_are_over_whole_gradients_in_every_step(here: Path, chromium: Page) -> None:
    local = ("estimator=local_steps", "estimator.every=8")
    runs = [run(SGD, 1, 94.0), run(SGD, 1, 95.0, *local, ratio=8.0), run(RANK_7, 1, 93.0)]
    for name, one in zip(("dense", "local", "rank"), runs, strict=True):
        one.place = name  # else two would be called alike
    write_kept(here / "outputs" / "all.jsonl.xz", runs)
    report(["html"])
    look(chromium, goal="92.0", link="100gbit", rate="0.001", coding="free")
    speedups = values(chromium, "goal-table", 3)
    (local_steps,) = (name for name in speedups if "local_steps" in name)
    (dense,) = speedups.keys() - {local_steps, "powersgd"}
    assert speedups[local_steps] > speedups[dense] == 1 > speedups["powersgd"]
    assert chromium.problems == []


def test_controls_filter_sort_and_highlight(frame: DataFrame, chromium: Page) -> None:
    look(chromium, setting="all")
    everything = len(frame.groupby(["compressor", "budget", "model"]))
    assert len(texts(chromium, "#runs tbody tr")) == everything == 4
    assert chromium.value("document.querySelector('main').offsetHeight") == 0
    chromium.value(
        "const box = document.getElementById('model'); box.value = 'resnet18';"
        "box.dispatchEvent(new Event('change'))"
    )
    assert len(texts(chromium, "#runs tbody tr")) == 2
    assert len(texts(chromium, "#curves .curve.other")) == 0
    order = [row.split()[0] for row in texts(chromium, "#runs tbody button")]
    chromium.value("document.querySelector('#runs th[aria-sort] button').click()")
    assert [row.split()[0] for row in texts(chromium, "#runs tbody button")] == order[::-1]
    chromium.value("document.querySelector('#methods input[value=none]').click()")
    assert len(texts(chromium, "#curves .curve.other")) == 1
    assert chromium.value("document.activeElement.value") == "none"  # which keeps the focus
    assert "method=powersgd" in chromium.value("location.hash")
    chromium.value("document.querySelector('#runs tbody button').click()")
    (detail,) = texts(chromium, "#runs tr.detail")
    assert "optimizer.lr=" in detail and "seed 1: done" in detail and "rank_7-s2" in detail
    assert chromium.problems == []


def test_texts_of_others_stay_texts(frame: DataFrame, chromium: Page) -> None:
    look(chromium, model=EVIL)
    assert EVIL in texts(chromium, "#model option")
    chromium.value("document.querySelector('#runs tbody button').click()")
    assert EVIL in texts(chromium, "#runs tr.detail")[0]
    assert chromium.value("document.querySelectorAll('script, img').length") == 2
    assert chromium.value("document.title") == "gcbench: methods against each other"
    assert chromium.problems == []
    # Even markup that gets into the page runs nothing and loads nothing.
    chromium.value(f"document.body.insertAdjacentHTML('beforeend', {EVIL!r})")
    later = "new Promise(done => setTimeout(() => done(document.title), 50))"
    assert chromium.value(later) == "gcbench: methods against each other"
    assert any("Content Security Policy" in problem for problem in chromium.problems)


def test_every_control_has_a_name(frame: DataFrame, chromium: Page) -> None:
    look(chromium)
    controls = "[...document.querySelectorAll('select, input, button')]"
    named = "it => it.labels?.length || it.textContent.trim()"
    assert chromium.value(f"{controls}.length") > 20
    assert chromium.value(f"{controls}.every({named})")


def test_scores_of_validation_are_called_so() -> None:
    runs = [
        RecordedRun(Result.parse(result_of(SGD, override, accuracy=90)), override, list)
        for override in ("dataset.split=test", "dataset.split=valid")
    ]
    labels = {
        s["title"].rpartition(", ")[2]: s["labels"]
        for s in collect(runs, lambda _: {}, lambda _: [], lambda _: [])["settings"]
    }
    assert labels.pop("split=valid")["accuracy"] == "Validation accuracy (%)"
    (tested,) = labels.values()
    assert tested["accuracy"] == "Test accuracy (%)"


def test_a_method_has_the_color_that_it_has_in_pictures(frame: DataFrame, chromium: Page) -> None:
    for chosen in (["none", "powersgd"], ["powersgd"]):
        chromium.problems.clear()
        chromium.open("about:blank")
        typed = urlencode({"budget": "paper", "model": "resnet18", "method": chosen}, doseq=True)
        chromium.open(f"{Path('outputs/report.html').resolve().as_uri()}#{typed}")
        classes = chromium.value(
            "document.querySelector('#curves [data-method=powersgd]').getAttribute('class')"
        )
        assert COLORS[int(classes.rpartition("s")[2])] == FAMILIES["powersgd"][0]
    assert chromium.problems == []


def test_the_page_is_one_file_that_names_no_other(frame: DataFrame) -> None:
    text = Path("outputs/report.html").read_text(encoding="utf-8")
    assert EVIL not in text and text.count("</script>") == 2
    loads = re.compile(r"\b(?:src|href)=|@import|url\(")
    assert loads.findall(text.replace("src=x", "")) == []
    assert build_page(find_runs(["outputs"]).runs, tables_by_identity, races, answers) == text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["html", "results=."], "results=.: no runs there; type where there are some"),
        (["html", "now"], "html now: html takes keys only"),
        (
            ["html", "budget=cpu"],
            "budget=cpu: gcbench report html does not read it; leave it out, or type gcbench",
        ),
    ],
)
def test_mistakes_are_told(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        report(arguments)


def test_curves_of_a_run_are_read_once() -> None:
    reads: list[int] = []
    one = run(SGD, 1, 90.0)

    def read() -> list[dict[str, Any]]:
        reads.append(1)
        return one.read_metrics()

    curves = _run(RecordedRun(one.result, one.place, read))["curves"]
    assert curves["accuracy"]["step"] == [*STEPS] and len(reads) == 1


def test_local_steps_code_once_in_an_exchange() -> None:
    device, one = read_device("cpu"), result_of("powersgd/table4/rank_7")
    every, eighth = (
        _predicted_coding(Result.parse({**one, "estimator": facts}), device)
        for facts in (None, {"every": 8})
    )
    assert every and eighth == pytest.approx(every / 8, rel=1e-3)


def test_seconds_of_a_model_on_other_samples_are_left_out() -> None:
    devices = [read_device("cpu")]
    digits, mnist = (Workload("mlp", data, 2, 16, "1 epoch") for data in ("digits", "mnist"))
    assert [*_predicted_computation(digits, devices)] == ["cpu"]
    assert _predicted_computation(mnist, devices) == {}


@pytest.mark.slow  # reads every kept run
def test_the_page_of_all_kept_runs_is_small_and_wide_enough(
    chromium: Page, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # back to the tables of the papers
    report(["html", f"results={KEPT}", f"file={here / 'outputs/report.html'}"])
    monkeypatch.chdir(here)
    runs = find_runs([KEPT]).runs
    assert Path("outputs/report.html").stat().st_size < 3000 * len(runs)
    device = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.call("Emulation.setDeviceMetricsOverride", **device)
    look(chromium)
    boxes = "[...document.querySelectorAll('.scroll')]"
    cut = f"{boxes}.filter(box => box.scrollWidth > box.clientWidth).length"
    assert chromium.value(cut) == 0
    chromium.call("Emulation.clearDeviceMetricsOverride")
    began = time.monotonic()
    look(chromium, setting="all")
    assert time.monotonic() - began < patience(3)
    assert texts(chromium, "#about")[0].startswith(f"{len(runs):,} runs, ")
    newest = {(run.result.identity, run.seed, run.budget) for run in runs}
    assert texts(chromium, "#status")[0].startswith(f"{len(newest):,} runs of ")
    assert chromium.problems == []
