"""Arguments that users type, and the messages for mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from results import result_of, write

from gcbench.core.errors import ConfigError
from gcbench.papers.tables.report import report
from gcbench.papers.tables.tables import read_table
from gcbench.runner.records.store import find_runs
from gcbench.runner.report.figures.series import series_by_workload
from gcbench.runner.report.listing import overrides_by_run

pytestmark = pytest.mark.usefixtures("here")

SGD = "powersgd/table4/sgd"
OUT = Path("outputs")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tabel=small/one"], "tabel=small/one: no such key; type table="),
        (["table=small/on"], "table=small/on: there is no such table; type small/one"),
        (["table=small/one", "format=latx"], "format=latx: type format=latex"),
        (["table=small/one", "budget=cpo"], "budget=cpo: type budget=cpu"),
        (["table=small/one", "results=nowhere"], "results=nowhere: there is no such folder"),
        (["table=small/one", "with=rank="], "with=rank=: type a key and a value"),
        (["list"], "list: type gcbench papers tables"),
        (["deviations"], "deviations: type gcbench papers deviations"),
        (["diff", "a", "b", "keep=k"], "keep=k: gcbench report diff does not read it"),
        (["table=small/one", "figure=orq"], "table=small/one: gcbench report figure=NAME does not"),
        (["figure=runs", "format=csv"], "format=csv: gcbench report figure=NAME does not read it"),
        (
            ["figure=runs", "with=rank=2"],
            "with=rank=2: figure=runs shows no runs of a table's rows",
        ),
        (
            ["figure=small/times", "with=rank=2"],
            "with=rank=2: figure=small/times shows no runs of a table's rows",
        ),
        (
            ["table=small/times", "with=rank=2"],
            "with=rank=2: table=small/times has the numbers of a study",
        ),
        (["table=small/one", "project=a/b"], "project=a/b: type source=wandb, too"),
        (["source=wandb", "table=small/one"], "type project=entity/project"),
        (["lst"], "lst: type table="),
        (["runs"], "runs: type gcbench runs"),
        ([], "nothing was asked for"),
        (["diff", "outputs"], "diff outputs: type two"),
        (["diff", "outputs", "nowhere"], "there is no result.json in or below it"),
        (
            ["diff", "../table/small/one.yaml", "outputs"],
            "one.yaml: it is a file; type a run's directory, or a folder with several or with",
        ),
        (["keep="], "keep=: type keep= and a folder"),
    ],
)
def test_slips_are_answered_in_one_sentence(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        report(arguments)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "measure: accuracy",
            "measure: acuracy",
            "measure=acuracy of column accuracy is not known; type accuracy",
        ),
        ("spread: range", "spread: wide", "spread=wide; type range, deviation or none"),
        ("note: a note", "nota: a note", "rows.1.nota: no such key; type note"),
        ("note: a note", "at: {cpo: {rank: 3}}", "Rank_7 has keys at budget=cpo; type bits, cpu"),
        (
            "published: {accuracy: 99.0}",
            "published: {accurcy: 99.0}",
            "Projected has accurcy published",
        ),
        ("digits: 3", "digits: three", "columns.1.digits is 'three': Input should be a valid"),
        ("source: somebody, table 1", "", "source is missing"),
        ("spread: range", "figure: {kind: bars}", "figure.kind=bars; type curves, breakdown"),
        ("spread: range", "figure: {kinds: curves}", "figure.kinds: no such key; type kind"),
        ("spread: range", "figure: {kind: curves, x: bits}", "figure.kind=curves draws y over x"),
        ("[mind the gap]", "[sohrt_words]", "table/notes.yaml; type short_words"),
        ("[mind the gap]", "[unlike]", "table/notes.yaml; type a sentence"),
    ],
)
def test_slips_in_a_table_file(here: Path, old: str, new: str, says: str) -> None:
    (here.parent / "table/notes.yaml").write_text("small: {short_words: few letters}")
    path = here.parent / "table/small/one.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match="small/one.yaml") as caught:
        report(["table=small/one"])
    assert says in str(caught.value)


def test_a_note_that_tables_share_is_listed_by_name(here: Path, said) -> None:
    (here.parent / "table/notes.yaml").write_text("small: {mind_it: mind the steps}")
    path = here.parent / "table/small/one.yaml"
    path.write_text(path.read_text().replace("[mind the gap]", "[mind_it, mind the gap]"))
    assert read_table("small/one").notes == ("mind the steps", "mind the gap")
    assert "mind the steps" in said("table=small/one", "verbose=true")


def test_a_report_on_a_terminal_is_the_table_and_a_line_that_says_how_to_see_more(said) -> None:
    write(OUT / "a", result_of(SGD))
    short, whole = (said("table=small/one", *more) for more in ((), ("verbose=true",)))
    assert "Source: somebody" in short and "No compression" in short
    assert "mind the gap" in whole and "mind the gap" not in short
    table, _, line = short.rstrip().rpartition("\n")
    assert line.startswith("verbose=true shows more: ") and "Notes (3)" in line
    assert "Made by (" in line and "Made by" not in table and "gcbench: " in whole
    assert "mind the gap" in said("table=small/one", "format=markdown")
    with pytest.raises(ConfigError, match="name=mine: type table=, too, or leave out verbose="):
        report(["name=mine", "verbose=true"])


def test_list_counts_rows_with_runs(said) -> None:
    write(OUT / "a", result_of(SGD))
    write(OUT / "b", result_of(SGD, seed=2))
    write(OUT / "c", result_of("powersgd/table4/rank_7", budget="cpu"))
    write(OUT / "d", result_of(SGD, budget="cpu", status="failed", reason="out of memory"))
    write(OUT / "e", result_of("powersgd/table4/rank_7", "rank=3", budget="bits"))  # of no row
    write(OUT / "f", result_of("powersgd/table3_cifar10/sgd", budget="cpu_long"))  # same as SGD
    one, times = (
        line.split() for line in said("tables").splitlines() if line.strip().startswith("small/")
    )
    assert " ".join(one[1:]).startswith("3 cpu 1, cpu_long 1, paper 1 A small table")
    assert "study," in times


def test_runs_lists_everything(said) -> None:
    write(OUT / "deep/down/a", result_of(SGD, accuracy=91.25))
    write(OUT / "b", result_of(SGD, seed=2, status="failed", reason="out of memory"))
    text = said("runs")
    assert "accuracy 91.25" in text and "outputs/b: failed: out of memory" in text
    assert "done, 1 failed" in text and "outputs/deep/down/a" not in text
    assert "outputs/deep/down/a" in said("runs", "all")
    assert "outputs/b" not in said("runs", "all", "outputs/deep")


def named(name: str, *typed: str, seed: int = 1, accuracy: float = 90.0, **facts: object) -> None:
    """Write a run of a sweep with `name`, for which `typed` was typed."""
    knobs = dict(one.split("=") for one in typed)
    result = result_of(SGD, *typed, seed=seed, accuracy=accuracy) | {"experiment": None, **facts}
    result["config"] |= {"name": name, "knobs": knobs, "experiment": None}
    write(OUT / name / f"{'+'.join(typed)}-{seed}", result)


def test_a_sweep_has_a_table_of_its_own(said) -> None:
    for bits, share in ((2, 0.75), (8, 1.0)):
        for seed in (1, 2):
            typed = ("compressor=qsgd", f"bits={bits}")
            named("first", *typed, seed=seed, accuracy=89.0 + bits + seed, compressed_share=share)
    named("other", "compressor=top_k")
    lines = [line.split() for line in said("name=first").splitlines()]
    assert ["qsgd", "bits=2", "92.50", "+-", "0.71"] in [line[:5] for line in lines]
    assert not any("top_k" in line for line in lines)
    assert [line[-3] for line in lines if line[:1] == ["qsgd"]] == ["75.0", "100.0"]  # of values
    latex = said("name=first", "format=latex")
    assert r"\toprule" in latex and r"qsgd bits=8 & 98.50 $\pm$ 0.71" in latex
    (row,) = (line for line in said("name=first", "format=csv").splitlines() if "bits=2" in line)
    assert "92.5,92.0,93.0," in row  # mean, lowest and highest
    assert "qsgd bits=2" in said("name=first", "format=markdown")
    assert said("runs", "name=first").count("first qsgd bits=") == 2
    with pytest.raises(ConfigError, match="name=frist: no run in results=outputs .* type first"):
        said("name=frist")
    with pytest.raises(ConfigError, match="type name=(first|other), name=(first|other) for a"):
        said()
    with pytest.raises(ConfigError, match="name=first: type table=, too, or leave out keep="):
        said("name=first", "keep=kept")
    assert len(said("figure=runs", "name=first").split()) > 3
    assert not list(Path("outputs/figures/first").rglob("*top_k*"))
    assert {path.suffix for path in Path("outputs/figures/first").rglob("*.*")} == {
        ".svg",
        ".png",
        ".pdf",
    }


def test_labels_are_what_was_typed_and_resolved_settings_only_where_that_is_not_enough() -> None:
    named("first", "compressor=none")
    named("first", "compressor=qsgd")
    named("first", "compressor=qsgd", "bits=2")
    runs = find_runs(["outputs"]).runs
    labels = {s.label for drawn in series_by_workload(runs).values() for s in drawn.series}
    assert labels == {"none", "qsgd bits=4", "qsgd bits=2"}
    told = overrides_by_run({run: run.title for run in runs}).values()
    assert {" ".join(one) for one in told} == {
        "compressor=none",
        "compressor=qsgd bits=4",
        "compressor=qsgd bits=2",
    }
    for run in runs:
        run.config["knobs"] = None  # as in runs of older versions
    labels = {s.label for drawn in series_by_workload(runs).values() for s in drawn.series}
    assert "none" in labels and len(labels) == 3


def test_runs_of_one_experiment_are_told_apart_by_their_methods_first(said) -> None:
    for number, choices in enumerate((["compressor=top_k"], ["compressor=qsgd", "bits=2"])):
        write(OUT / str(number), result_of(SGD, *choices))
    lines = said("runs").splitlines()
    assert any(f"{SGD} compressor=top_k" in line for line in lines)
    assert any(f"{SGD} compressor=qsgd" in line for line in lines)


def test_pages_and_pictures_are_never_written_to_the_results_of_others(here: Path, said) -> None:
    named("first", "compressor=qsgd", "bits=2")
    named("first", "compressor=qsgd", "bits=8")
    other = OUT.rename(here / "other")
    before = {*other.rglob("*")}
    for typed in (("html", "results=other"), ("results=other", "html")):
        assert said(*typed).startswith("outputs/report.html: 2 runs; open it")
    said("figure=runs", "results=other")
    assert [*OUT.rglob("figures/**/*.png")]
    assert {*other.rglob("*")} == before
