"""Figures plot what the result files say, axes have names and units, and gaps are named."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from results import result_of

from gcbench.core.errors import ConfigError
from gcbench.papers.figures.figures import draw, series_of_rows
from gcbench.papers.tables.rows import group_runs
from gcbench.papers.tables.tables import read_table
from gcbench.runner.drawing import FAMILIES, panels, part_ticks, style_of_method
from gcbench.runner.records.schema import Collective, Network, Result
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.figures.bars import PHASES, draw_breakdown, draw_time_to_score, target_of
from gcbench.runner.report.figures.curves import draw_curves
from gcbench.runner.report.figures.draw import draw_scaling
from gcbench.runner.report.figures.series import (
    Drawn,
    Series,
    add_caption,
    label_of,
    series_by_task,
    series_by_workload,
    workload_of,
)
from gcbench.runner.report.figures.tradeoff import Panel, draw_accuracy_ratio, draw_tradeoff, front

pytestmark = pytest.mark.usefixtures("here")

SGD, RANK_7 = "powersgd/table4/sgd", "powersgd/table4/rank_7"
MIB = 2**23
FIGURE = """
title: Curves
source: somebody, figure 1
figure: {kind: curves, y: [accuracy, relative_error], x: [epoch, seconds], panels: group}
columns:
  accuracy: {title: Test accuracy, unit: "%", measure: accuracy}
rows:
  - {experiment: powersgd/table4/sgd, title: SGD, group: ResNet}
  - {experiment: powersgd/table4/rank_7, title: Rank 7, group: ResNet}
"""


def metrics(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the log of three epochs of ten steps; training lines are between the tests."""
    sent, accuracy = result["bits_sent"]["per_step"], result["test"]["accuracy"]
    timed = result["seconds"] is not None
    lines: list[dict[str, Any]] = []
    for epoch in (1, 2, 3):
        step = 10 * epoch
        lines += [
            {
                "event": "compression",
                "step": step,
                "epoch": epoch,
                "relative": 0.1 * epoch,
                "cosine": 0.9,
            },
            {
                "event": "test",
                "step": step,
                "epoch": epoch,
                "accuracy": accuracy - 3 + epoch,
                "loss": 1.0,
            },
            {"event": "train", "step": step + 5, "epoch": epoch + 0.5, "loss": 2.0 / epoch}
            | {
                "bits_sent_per_worker": sent * (step + 5),
                "seconds": 0.5 * (step + 5) if timed else None,
            },
        ]
    return lines


def run(experiment: str = SGD, *overrides: str, **facts: Any) -> RecordedRun:
    result = result_of(experiment, *overrides, **facts)
    if result.get("seconds"):
        result["seconds"] |= {
            phase: {"mean": 0.01 * (i + 1), "max": 0.1} for i, phase in enumerate(PHASES)
        }
    return RecordedRun(Result.parse(result), f"{experiment}-{facts}", lambda: metrics(result))


def series(label: str, *runs: RecordedRun, **facts: Any) -> Series:
    return Series(label, runs[0].result.choices["compressor"], list(runs), **facts)


def drawn(*members: Series) -> Drawn:
    return Drawn(list(members), ["Missing: X."])


def words_of(figure: Figure | None) -> str:
    assert figure is not None
    return " ".join(word for text in figure.texts for word in text.get_text().split())


def lines_of(figure: Figure | None, axes: int = 0) -> dict[str, Any]:
    assert figure is not None
    return {str(line.get_label()): line for line in figure.axes[axes].lines}


def test_curves_are_the_means_of_the_seeds_within_their_range() -> None:
    figure = draw_curves(
        drawn(series("SGD", run(accuracy=90), run(accuracy=94, seed=2))), "accuracy", "epoch"
    )
    line = lines_of(figure)["SGD"]
    assert line.get_xdata().tolist() == [1, 2, 3] and line.get_ydata().tolist() == [90, 91, 92]
    assert figure is not None
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (88, 94)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == (
        "Epoch",
        "Test accuracy (%)",
    )
    assert "Missing: X." in words_of(figure)


def test_groups_of_the_same_runs_share_a_panel() -> None:
    """If one small model stands in for several, their panels would all be the same."""
    one, other = run(SGD, accuracy=90), run(SGD, accuracy=80)
    drawn = [
        Series(f"{group}: SGD", "none", [runs], group=group, title="SGD")
        for group, runs in (("ResNet", one), ("VGG", one), ("LSTM", other))
    ]
    figure = draw_curves(Drawn(drawn, []), "accuracy", "epoch", by_group=True)
    assert figure and [ax.get_title() for ax in figure.axes] == [
        "resnet18, in place of ResNet, VGG",
        "LSTM",
    ]


def test_the_distance_from_the_optimum_is_on_a_logarithmic_axis() -> None:
    one = series("SGD", run(accuracy=90))
    figure = draw_curves(drawn(one), "accuracy", "epoch", optimum={one.group: 88.5})
    assert figure and figure.axes[0].get_yscale() == "log"
    assert lines_of(figure)["SGD"].get_ydata().tolist() == [0.5, 0.5, 1.5]
    assert "from the optimum's" in figure.axes[0].get_ylabel()


def test_bits_and_seconds_of_a_test_lie_between_those_of_the_log() -> None:
    one = run(ratio=8)
    sent = one.result.bits_sent.per_step
    by_bits = lines_of(draw_curves(drawn(series("SGD", one)), "accuracy", "bits"))["SGD"]
    by_time = lines_of(draw_curves(drawn(series("SGD", one)), "accuracy", "seconds"))["SGD"]
    assert np.allclose(by_bits.get_xdata(), [10 * sent / MIB, 20 * sent / MIB, 30 * sent / MIB])
    assert np.allclose(by_time.get_xdata(), [5, 10, 15])


def test_virtual_workers_are_not_in_a_time_axis_and_the_figure_says_so() -> None:
    timed, virtual = series("SGD", run()), series("Rank 7", run(RANK_7, step_seconds=None))
    figure = draw_curves(drawn(timed, virtual), "accuracy", "seconds")
    assert "Rank 7" not in lines_of(figure)
    assert "Without times (virtual workers, or fewer than the row's): Rank 7." in words_of(figure)
    assert draw_curves(drawn(virtual), "accuracy", "seconds") is None


def test_breakdown_stacks_the_phases_in_milliseconds() -> None:
    figure = draw_breakdown(
        drawn(series("SGD", run()), series("Rank 7", run(RANK_7, step_seconds=None)))
    )
    assert figure is not None
    (ax,) = figure.axes
    widths = [patch.get_width() for patch in ax.patches]
    assert np.allclose(widths, [10.0 * (i + 1) for i in range(len(PHASES))])
    assert np.allclose([patch.get_x() for patch in ax.patches], np.cumsum([0, *widths[:-1]]))
    assert ax.get_xlabel() == "Time per step (ms)"
    assert "Without times (virtual workers, or fewer than the row's): Rank 7." in words_of(figure)
    assert "Some runs had an emulated network." not in words_of(figure)
    one = run()
    one.result = one.result.model_copy(update={"network": Network(emulated=True)})
    assert "Some runs had an emulated network." in words_of(
        draw_breakdown(drawn(series("SGD", one)))
    )


def test_speed_up_is_over_full_precision_on_one_worker() -> None:
    rows = [
        ("SGD, 1 worker", SGD, 1, 0.1),
        ("SGD, 2 workers", SGD, 2, 0.125),
        ("Rank 7, 2 workers", RANK_7, 2, 0.1),
    ]
    members = []
    for title, experiment, workers, seconds in rows:
        one = run(experiment, step_seconds=seconds)
        one.result = one.result.model_copy(update={"workers": workers})
        members.append(series(title, one))
    figure = draw_scaling(drawn(*members))
    assert figure is not None
    curve, other = (container.lines[0] for container in figure.axes[0].containers)
    assert curve.get_xdata().tolist() == [1, 2] and np.allclose(curve.get_ydata(), [1, 1.6])
    assert other.get_xdata().tolist() == [2] and np.allclose(other.get_ydata(), [2])
    assert draw_scaling(drawn(*members[1:])) is None
    fewer = series("SGD, 16 workers", members[1].runs[0], timed=False)
    shown = draw_scaling(drawn(*members, fewer))
    assert (
        "or fewer than the row's): SGD, 16 workers." in words_of(shown)
        and draw_breakdown(drawn(fewer)) is None
    )
    assert shown is not None and shown.axes[0].containers[0].lines[0].get_xdata().tolist() == [1, 2]


def test_a_label_means_the_same_method_on_every_number_of_workers() -> None:
    """Ranks differ between numbers of workers, but not between runs with the same number."""

    def of(workers: int, *overrides: str, **facts: Any) -> RecordedRun:
        one = run(RANK_7, f"trainer.workers={workers}", *overrides, **facts)
        one.result = one.result.model_copy(update={"workers": workers})
        return one

    (drawn,) = series_by_task([of(2, "rank=7"), of(2, "rank=7", seed=2), of(4, "rank=1")]).values()
    found = {(s.label, s.runs[0].result.workers, len(s.runs)) for s in drawn.series}
    assert found == {("powersgd rank=7", 2, 2), ("powersgd rank=1", 4, 1)}


def test_the_front_has_what_nothing_beats() -> None:
    members = [
        series("SGD", run(accuracy=94, ratio=1)),
        series("good", run(accuracy=95, ratio=4)),
        series("small", run(RANK_7, accuracy=93, ratio=64)),
        series("beaten", run(RANK_7, accuracy=92, ratio=32)),
    ]
    points = Panel(drawn(*members)).points()
    assert [point.x for point in points] == [1, 4, 32, 64]
    assert [point.series.label for point in front(points, "accuracy")] == ["good", "small"]
    assert [point.series.label for point in front(points, "loss")] == ["beaten", "small"]


def sends(megabytes: float, accuracy: float) -> RecordedRun:
    """Return a run of two workers that all-reduces `megabytes` in its single step."""
    bits = 8e6 * megabytes
    message = Collective(
        level="all",
        collective="all_reduce",
        workers=2,
        messages=1,
        sent_bits=bits,
        received_bits=bits,
        wire_bits=bits,
    )
    made = run(accuracy=accuracy)
    made.result = made.result.model_copy(
        update={"collectives": [message], "workers": 2, "steps": 1}
    )
    return made


def test_every_link_has_a_panel_in_which_the_shorter_exchange_is_better() -> None:
    many = [series(f"slow {i}", sends(9 + i, accuracy=80)) for i in range(20)]
    members = [
        *many,
        series("long", sends(8, accuracy=95)),
        series("short", sends(1, accuracy=90)),
        series("between", sends(4, accuracy=85)),
    ]
    members = [replace(one, title=one.label) for one in members]  # as rows of a table are
    asked = {
        name: Panel(drawn(*members), "link_milliseconds", {"network": name})
        for name in ("100mbit", "1gbit")
    }
    slow, fast = (panel.points() for panel in asked.values())
    assert [p.series.label for p in fast[:3]] == ["short", "between", "long"]
    assert all(9 < a.x / b.x <= 10 for a, b in zip(slow, fast, strict=True))
    best = front(fast, "accuracy", "link_milliseconds")
    assert [p.series.label for p in best] == ["short", "long"]
    figure = draw_tradeoff(asked)
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["100mbit", "1gbit"]
    one, other = ([text.get_text() for text in ax.texts] for ax in figure.axes)
    assert one == other == [str(n) for n in range(1, 24)]
    assert len(figure.legends[0].get_texts()) == 1 + len(members)


def test_labels_of_the_trade_off_cover_neither_points_nor_each_other() -> None:
    members = [series(f"method {i}", run(accuracy=90 + i % 3, ratio=2 + 0.1 * i)) for i in range(8)]
    figure = draw_accuracy_ratio({"a title": drawn(*members)})
    assert figure is not None
    (ax,) = figure.axes
    boxes = [text.get_window_extent() for text in ax.texts]
    points = ax.transData.transform([(2 + 0.1 * i, 90 + i % 3) for i in range(8)])
    assert len(boxes) == 8
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(box.contains(*point) for box in boxes for point in points)
    assert ax.get_xlabel() == "Compression ratio, metered (x fp32)"


@pytest.mark.timeout(30)
def test_hundreds_of_names_find_their_places_in_seconds() -> None:
    members = [series(f"method {i}", run(accuracy=90 + i % 2, ratio=9 + i % 3)) for i in range(200)]
    figure = draw_accuracy_ratio({"a title": drawn(*members)})
    assert figure is not None and len(figure.axes[0].texts) == 200


def test_names_of_many_rows_of_a_table_stand_in_the_legend() -> None:
    names = [f"method {i}" for i in range(25)]
    own = [series(name, run(accuracy=90 + i % 3, ratio=20 - i / 2)) for i, name in enumerate(names)]
    figure = draw_accuracy_ratio({"": drawn(*own)})
    assert figure is not None and {text.get_text() for text in figure.axes[0].texts} == {*names}
    members = [replace(one, title=one.label) for one in own]
    figure = draw_accuracy_ratio({"a title": drawn(*members)})
    assert figure is not None
    (ax,) = figure.axes
    # Numbers are in order of ratio: the last method has the lowest.
    assert [text.get_text() for text in ax.texts] == [str(n) for n in range(1, 26)]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[1:] == [f"{n}  method {25 - n}" for n in range(1, 26)]
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    for box in (text.get_window_extent() for text in legend.get_texts()):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


def test_leaders_of_the_trade_off_run_behind_names() -> None:
    members = [
        series(f"a method with a long name {i}", run(accuracy=90 + 0.1 * (i % 4), ratio=2 + i / 20))
        for i in range(14)
    ]
    figure = draw_accuracy_ratio({"a title": drawn(*members)})
    assert figure is not None
    (ax,) = figure.axes
    leaders = [line for line in ax.lines if line.get_linewidth() == 0.5]
    assert leaders
    for text in ax.texts:
        behind = text.get_bbox_patch()
        assert behind is not None and behind.get_facecolor()[3] > 0.5
        assert text.get_zorder() > max(line.get_zorder() for line in leaders)


def test_time_to_accuracy_is_the_first_test_that_reaches_it() -> None:
    fast, slow = series("SGD", run(accuracy=96)), series("Rank 7", run(RANK_7, accuracy=90))
    assert target_of(drawn(fast, slow), "accuracy") == pytest.approx(94.1)
    figure = draw_time_to_score(drawn(fast, slow), "accuracy", 95)
    assert figure is not None
    steps, bits, seconds = figure.axes
    assert [patch.get_width() for patch in steps.patches] == [20]
    assert np.allclose([patch.get_width() for patch in seconds.patches], [10])
    assert [text.get_text() for text in bits.texts] == ["not reached"]
    assert "is at least 95" in words_of(figure)


def test_times_of_fewer_workers_than_the_rows_are_drawn_nowhere() -> None:
    row, fewer = series("SGD", run()), replace(series("QSGD", run(RANK_7)), timed=False)
    figure = draw_curves(drawn(row, fewer), "accuracy", "seconds")
    assert set(lines_of(figure)) == {"SGD"}
    reached = draw_time_to_score(drawn(row, fewer), "accuracy", 80)
    assert reached is not None
    steps, _, seconds = reached.axes
    assert len(steps.patches) == 2 and len(seconds.patches) == 1
    assert [text.get_text() for text in seconds.texts] == ["no times"]


def test_one_timed_seed_of_two_is_no_time_to_a_score() -> None:
    both = series("SGD", run(accuracy=96), run(accuracy=96, seed=2, step_seconds=None))
    timed = series("Rank 7", run(RANK_7, accuracy=96))
    figure = draw_time_to_score(drawn(both, timed), "accuracy", 95)
    assert figure is not None
    assert [text.get_text() for text in figure.axes[2].texts] == ["no times"]


def test_time_to_perplexity_is_between_the_tests_around_it() -> None:
    """Scores fall from 50 to 40 and 30; the goal is 2 % above full precision's best."""
    falling = run()
    tests = [
        {"event": "test", "step": 10 * epoch, "epoch": epoch, "perplexity": 60.0 - 10 * epoch}
        for epoch in (1, 2, 3)
    ]
    test = {"perplexity": 30.0, "best_perplexity": 30.0}
    falling.result = falling.result.model_copy(update={"test": test})
    member = drawn(series("SGD", RecordedRun(falling.result, "falling", lambda: tests)))
    assert target_of(member, "perplexity") == pytest.approx(30.6)
    figure = draw_time_to_score(member, "perplexity", 45)
    assert figure is not None
    assert [patch.get_width() for patch in figure.axes[0].patches] == [15]
    assert "is at most 45" in " ".join(words_of(figure).split())


def test_a_table_gives_files_and_says_which_rows_are_missing(here: Path) -> None:
    (here.parent / "table" / "small" / "figure.yaml").write_text(FIGURE)
    runs = [run(SGD), run(SGD, seed=2)]
    lines = draw("small/figure", runs, here / "figures")
    names = [
        f"small/figure/{y}-over-{x}"
        for y in ("accuracy", "relative_error")
        for x in ("epoch", "seconds")
    ]
    assert lines == [f"{here / 'figures' / name}.svg .png" for name in names]
    first = {path: path.read_bytes() for path in (here / "figures").rglob("*.*")}
    draw("small/figure", runs, here / "figures")
    assert all(path.read_bytes() == content for path, content in first.items())
    rows = group_runs(read_table("small/figure"), runs, "paper")
    shown = series_of_rows(rows)
    assert shown.notes == ["Missing: ResNet: Rank 7."]
    assert shown.title == "; ".join(dict.fromkeys(workload_of(one).title for one in runs))
    figure = draw_curves(shown, "accuracy", "epoch")
    assert figure and shown.title and figure.get_suptitle().replace("\n", " ") == shown.title


def test_nothing_to_draw_is_one_sentence(here: Path) -> None:
    (here.parent / "table" / "small" / "figure.yaml").write_text(
        FIGURE.replace(", panels: group", "").replace("[epoch, seconds]", "epoch")
    )
    lines = draw("small/figure", [], here / "figures", budget="cpu")
    missing = "small/figure/accuracy-over-epoch: no run of budget=cpu has what it shows"
    assert lines[0] == f"{missing}; gcbench report table=small/figure says what to run"
    assert not (here / "figures").exists()


@pytest.mark.parametrize("asked", ["which_method", "runs"])
def test_where_no_run_is_finished_the_budgets_that_have_some_are_named(
    here: Path, asked: str
) -> None:
    missing = f"{asked}: no figure; there is no finished run of budget=paper"
    assert draw(asked, [run(SGD, status="diverged")], here) == [missing]
    runs = [run(SGD, budget=budget) for budget in ("cpu_long", "cpu")]
    assert draw(asked, runs, here) == [f"{missing}; type budget=cpu, cpu_long"]


def test_which_method_compares_only_what_was_given_the_same(here: Path) -> None:
    runs = [
        run(SGD, accuracy=90),
        run(RANK_7, accuracy=88, ratio=30),
        run(SGD, "trainer.epochs=1"),
        run(RANK_7, status="diverged"),
    ]
    workloads = series_by_workload(runs)
    assert [len(part.series) for part in workloads.values()] == [1, 1]
    (whole,) = [part for workload, part in workloads.items() if workload.length != "1 epoch"]
    assert whole.notes == ["Not drawn: powersgd (diverged, seed 1)."]
    assert draw("which_method", runs[:3], here)[0] == f"{here / 'which_method.svg'} .png"


def test_scores_of_validation_are_called_so_and_share_no_panel_with_those_of_the_test() -> None:
    splits = ("test", "valid")
    runs = {split: run(SGD, f"dataset.split={split}", accuracy=90) for split in splits}
    tested, validated = (series(split, one) for split, one in runs.items())
    assert label_of("accuracy", [tested]) == "Test accuracy (%)"
    assert label_of("accuracy", [validated]) == "Validation accuracy (%)"
    assert label_of("best_accuracy", [validated]) == "Best validation accuracy (%)"
    assert label_of("train_loss", [validated]) == "Training loss (nats)"
    assert label_of("accuracy", [tested, validated]) == "Test or validation accuracy (%)"
    workloads = series_by_workload([*runs.values()])
    assert [workload.split for workload in workloads] == ["test", "valid"]
    assert len({workload.name for workload in workloads}) == 2
    assert [", split=valid" in workload.title for workload in workloads] == [False, True]


def test_what_is_no_figure_is_refused(here: Path) -> None:
    with pytest.raises(
        ConfigError, match="figure=which_methods: type a table, a paper, all, or which_method"
    ):
        draw("which_methods", [], here)


def test_families_of_one_color_differ_in_shape() -> None:
    assert len(set(FAMILIES.values())) == len(FAMILIES)
    assert style_of_method("qsgd", 1)["linestyle"] != style_of_method("qsgd")["linestyle"]


def test_a_picture_of_own_runs_says_its_setting_its_seeds_and_what_its_bars_are() -> None:
    half = run("powersgd/table4/rank_7")
    half.result = half.result.model_copy(update={"compressed_share": 0.753})
    both = [run(SGD), run(SGD, seed=2, accuracy=80), half]
    ((workload, plain),) = series_by_workload(both).items()
    figure = draw_curves(add_caption(workload, plain), "accuracy", "epoch")
    assert figure is not None and figure.get_suptitle().replace("\n", " ") == workload.title
    text = words_of(figure)
    assert "Means of 1 to 2 seeds; bands and whiskers: lowest to highest." in text
    assert "Compressed in part only: powersgd 75.3 % of the values." in text


def test_one_test_alone_has_whiskers_where_several_have_a_band() -> None:
    short = [run(SGD), run(SGD, seed=2, accuracy=80)]
    for one in short:
        one.read_metrics = partial(list, one.read_metrics()[:3])
    figure = draw_curves(drawn(series("SGD", *short)), "accuracy", "bits")
    assert figure is not None
    (whiskers,) = (c for c in figure.axes[0].collections)
    assert [list(y) for y in np.array(whiskers.get_segments())[0].T][1] == [78, 88]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_numbers_along_an_axis_do_not_touch(scale: str) -> None:
    figure, (ax,) = panels([""])
    ax.plot([0.00124], [1.0], "o")
    ax.set(xscale=scale, xlim=(0.001215, 0.001265))
    ax.tick_params(axis="x", labelsize=20)
    part_ticks(figure)
    figure.draw_without_rendering()
    labels = [label for label in ax.get_xticklabels() if label.get_text()]
    boxes = sorted((box.x0, box.x1) for box in (label.get_window_extent() for label in labels))
    assert boxes and all(a[1] < b[0] for a, b in itertools.pairwise(boxes))


def test_many_lines_have_their_names_beside_them_and_no_legend() -> None:
    for count in (8, 9):
        many = [series(f"m{n}", run(SGD, accuracy=50 + 4 * n)) for n in range(count)]
        figure = draw_curves(Drawn(many, []), "accuracy", "epoch")
        assert figure is not None
        beside = {text.get_text() for text in figure.axes[0].texts}
        assert beside == ({s.label for s in many} if count > 8 else set())
        assert bool(figure.legends) == (count == 8)


def test_curves_go_as_far_as_the_shortest_seed_and_vnmses_are_squares() -> None:
    one, other = run(), run(seed=2)
    short = RecordedRun(other.result, "short", lambda: metrics(other.result.model_dump())[:6])
    line = lines_of(draw_curves(drawn(series("SGD", one, short)), "vnmse", "epoch"))["SGD"]
    assert line.get_xdata().tolist() == [1, 2] and np.allclose(line.get_ydata(), [0.01, 0.04])


def test_a_seed_that_is_not_finite_at_a_test_leaves_out_that_test_only() -> None:
    runs = [run(accuracy=90), run(accuracy=94, seed=2)]
    lines = runs[1].read_metrics()
    next(line for line in lines if line["event"] == "test")["accuracy"] = None
    runs[1].read_metrics = lambda: lines
    (line,) = lines_of(draw_curves(drawn(series("SGD", *runs)), "accuracy", "epoch")).values()
    assert list(line.get_xdata()) == [2, 3] and list(line.get_ydata()) == [91, 92]


def test_a_target_is_of_the_best_scores_and_of_the_median_row_without_full_precision() -> None:
    rows = [series(f"row {a}", run(RANK_7, accuracy=a)) for a in (95, 90, 50)]
    assert target_of(drawn(*rows), "accuracy") == pytest.approx(0.98 * 90)
    fell = run()
    fell.result = fell.result.model_copy(update={"test": {"accuracy": 50, "best_accuracy": 80}})
    assert target_of(drawn(*rows, series("SGD", fell)), "accuracy") == pytest.approx(0.98 * 80)


def test_speed_up_is_not_over_a_compressed_run() -> None:
    members = []
    for title, experiment, seconds in (("SGD", SGD, 0.1), ("Rank 7", RANK_7, 0.05)):
        one = run(experiment, step_seconds=seconds)
        one.result = one.result.model_copy(update={"workers": 1})
        members.append(series(f"{title}, 1 worker", one))
    figure = draw_scaling(drawn(*members))
    assert figure is not None
    speeds = [c.lines[0].get_ydata().tolist() for c in figure.axes[0].containers]
    assert speeds == [[1], [pytest.approx(2)]]


def test_what_is_as_good_at_a_higher_ratio_takes_the_place_on_the_front() -> None:
    members = [series("low", run(accuracy=94, ratio=1)), series("high", run(accuracy=94, ratio=4))]
    points = Panel(drawn(*members)).points()
    assert [point.series.label for point in front(points, "accuracy")] == ["high"]


def test_panels_of_speed_up_draw_methods_as_their_legend() -> None:
    """Each panel has only some of the methods of one family that the legend numbers."""
    members = []
    for group, title in (("a", "Rank 1"), ("b", "Rank 2")):
        one = run(RANK_7)
        one.result = one.result.model_copy(update={"workers": 1})
        members.append(replace(series(f"{title}, 1 worker", one), group=group))
    figure = draw_scaling(drawn(*members))
    assert figure is not None and len(figure.axes) == 2
    looks = {str(line.get_label()): line.get_linestyle() for line in figure.legends[0].get_lines()}
    assert looks["Rank 1"] != looks["Rank 2"]
    for ax in figure.axes:
        (container,) = ax.containers
        assert container.lines[0].get_linestyle() == looks[str(container.get_label())]
