"""Figures of studies, from rows with the keys that studies write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcbench.core.errors import ConfigError
from gcbench.papers.figures.figures import figures_of_table
from gcbench.papers.figures.study_figures import (
    draw_ecq_stability,
    draw_histograms,
    draw_layers,
    draw_predicted_throughput,
    draw_quantizer_bounds,
)
from gcbench.papers.figures.study_lines import draw_decode_scaling, draw_wire_error
from gcbench.papers.tables.tables import Table, TableFigure, TableRow

pytestmark = pytest.mark.usefixtures("here")

SETTINGS = {"model": "resnet20", "dataset": "cifar10", "clip_sigma": 2.5}


def histogram(*counts: int) -> dict[str, Any]:
    return {"low": -1.0, "high": 1.0, "counts": list(counts), "below": 5, "above": 5}


def test_histograms_show_shares_of_all_values() -> None:
    rows = [
        {"row": "FP", "step": 200, "histogram": histogram(20, 50, 20)},
        {"row": "ORQ-9", "vnmse": 0.25, "histogram": histogram(0, 90, 0)},
    ]
    figure = draw_histograms({"settings": SETTINGS, "rows": rows}, ["FP", "ORQ-9", "QSGD-9"])
    assert figure is not None
    _, ours = figure.axes
    assert ours.get_title() == "ORQ-9, vNMSE 0.25" and ours.get_ylabel() == "Share (%)"
    assert ours.collections[-1].get_paths()[0].vertices[:, 1].max() == 90
    assert "Missing: QSGD-9." in figure.texts[0].get_text()


def test_bounds_stand_above_what_was_measured() -> None:
    rows = [
        {
            "row": f"s={s}",
            "vector": "normal",
            "n": 256,
            "s": s,
            "variance": 1 / s,
            "variance_bound": 2 / s,
            "nonzeros": s,
        }
        | {"nonzeros_bound": 2 * s, "sparse_code_bits": 10 * s, "sparse_code_bound_bits": 20 * s}
        for s in (1, 2, 4)
    ]
    figure = draw_quantizer_bounds({"settings": {}, "rows": rows})
    assert figure is not None
    measured, bound = figure.axes[2].lines
    assert list(measured.get_ydata()) == [10, 20, 40] and list(bound.get_ydata()) == [20, 40, 80]
    assert figure.axes[2].get_ylabel() == "Code length (bits)"


def test_memories_are_dashed_where_the_theory_allows_growth() -> None:
    row = {
        "row": "l2, d=256",
        "d": 256,
        "alphas": [0.1, 0.6],
        "lambdas": [0.85, 1.6],
        "steps": [1, 10, 100],
    }
    figure = draw_ecq_stability(
        {"settings": {}, "rows": [{**row, "residual_by_alpha": [[1, 2, 2], [1, 30, None]]}]}
    )
    assert figure is not None
    calm, wild = figure.axes[0].lines
    assert calm.get_linestyle() == "-" and wild.get_linestyle() == "--"
    assert list(wild.get_xdata()) == [1, 10] and list(calm.get_ydata()) == [1, 2, 2]


def test_decoding_and_payload_by_workers() -> None:
    rows = [
        {
            "row": f"{m}, W={w}",
            "method": m,
            "workers": w,
            "decode_milliseconds": 3.0 * w,
            "received_bits": 2**23 * w,
        }
        for m in ("qsgd", "powersgd")
        for w in (2, 4)
    ]
    figure = draw_decode_scaling({"settings": {}, "rows": rows})
    assert figure is not None
    decoding, received = figure.axes
    assert (
        list(decoding.lines[0].get_ydata()) == [6, 12] and decoding.get_ylabel() == "Decoding (ms)"
    )
    assert (
        np.allclose(received.lines[1].get_ydata(), [2, 4])
        and received.get_ylabel() == "Received in a step (MiB)"
    )


def test_predicted_throughput_takes_the_rows_of_its_own_table(tmp_path: Path) -> None:
    table = Table("ecqsgd/figure6", "t", "s", [], [TableRow("SGD"), TableRow("ECQ-SGD")])
    row = {"row": "SGD", "gpus": [8, 16], "images_per_second_by_gpus": [100.0, 180.0]}
    study = {
        "settings": {},
        "rows": [{**row, "table": "maxnorm/figure11"}, {**row, "table": "ecqsgd/figure6"}],
    }
    figure = draw_predicted_throughput(table, study)
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [8, 16] and list(line.get_ydata()) == [100, 180]
    assert "Missing: ECQ-SGD." in figure.texts[0].get_text()
    assert draw_predicted_throughput(table, {"settings": {}, "rows": []}) is None


def test_a_figure_of_rows_is_refused_where_a_study_has_none() -> None:
    row = TableRow("SGD")
    table = Table(
        "orq/table1", "t", "s", [], [row], figure=TableFigure(kind="scaling"), study="svd_cost"
    )
    with pytest.raises(ConfigError, match="orq/table1: study svd_cost has no figure"):
        list(figures_of_table(table, [], "paper", (), []))


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        (TableFigure(kind="histograms"), "orq/table2: figure.kind=histograms is for tables of a"),
        (TableFigure(kind="curves", x=("epochs",), y=("loss",)), "is called epochs; type epoch"),
        (TableFigure(kind="breakdown", caption="los"), "nothing is called los; type loss"),
    ],
)
def test_a_figure_of_what_runs_lack_is_refused(figure: TableFigure, says: str) -> None:
    table = Table("orq/table2", "t", "s", [], [TableRow("SGD")], figure=figure)
    with pytest.raises(ConfigError, match=says):
        list(figures_of_table(table, [], "paper", (), []))


def test_layers_have_bits_a_value_and_errors() -> None:
    lines = [
        {"name": "conv", "values": 100, "bits_a_step": 400, "relative": 0.5},
        {"name": "bias", "values": 10, "bits_a_step": 320, "relative": 0.0},
    ]
    figure = draw_layers({"settings": SETTINGS, "rows": [{"row": "qsgd bits=4", "layers": lines}]})
    assert figure is not None
    bits, errors = (ax.lines[0].get_ydata() for ax in figure.axes)
    assert list(bits) == [4, 32] and errors[0] == 0.5 and np.isnan(errors[1])
    assert (
        figure.axes[1].get_xticklabels()[1].get_text() == "bias"
        and figure.axes[0].get_ylabel() == "Sent (bits per value)"
    )


def test_wires_are_drawn_over_workers_by_what_is_on_them() -> None:
    methods = ("bf16", "bf16 accumulate=fp32", "mxfp8 exchange=ring")
    rows = [
        {"row": f"{m}, W={w}", "method": m, "workers": w, "vnmse": w * 1e-6}
        for m in methods
        for w in (2, 4)
    ]
    figure = draw_wire_error({"settings": {}, "rows": rows})
    assert figure is not None
    halves, coded = figure.axes
    assert [line.get_label() for line in halves.lines] == ["bf16", "bf16 accumulate=fp32"]
    assert [list(line.get_ydata()) for line in coded.lines] == [[2e-6, 4e-6]]
    assert len({line.get_linestyle() for line in halves.lines}) == 2
    assert len(figure.legends[0].get_texts()) == 3
