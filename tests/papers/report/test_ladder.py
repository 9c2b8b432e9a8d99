"""Ladders: rows for every size, length and number of workers, fits, the page and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2, log10
from pathlib import Path

import numpy as np
import pytest
import torch
from results import result_of

from gcbench.core.errors import ConfigError
from gcbench.papers import tables
from gcbench.papers.build import build, groups_of
from gcbench.papers.configs import compose, compose_row
from gcbench.papers.ladder import Cell
from gcbench.papers.ladder_fit import Fit, draw_penalties, fit, fits_of
from gcbench.papers.reach_map import _slopes
from gcbench.papers.tables import Table, TableRow, read_table
from gcbench.runner.config import choices
from gcbench.runner.data import TokenData
from gcbench.runner.launch.instantiate import parameter_shapes
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import markdown

SIZES, WORKERS, SEEDS = (100_000, 300_000, 1_000_000), (1, 4, 16), (1, 2, 3)
ORIGIN, HELD = (300_000, 4), (3_000_000, 16)
PENALTY, PER_DECADE, PER_DOUBLING = 0.05, -0.02, 0.01


def loss(n: int) -> float:
    return 2.4 * float(n / 300_000) ** -0.12


def penalty(n: int, k: int) -> float:
    return PENALTY + PER_DECADE * log10(n / ORIGIN[0]) + PER_DOUBLING * log2(k / ORIGIN[1])


def fit_to(
    noise: float, trial: int = 0, seeds: Sequence[int] = SEEDS, large: Sequence[int] = ()
) -> tuple[Fit, float]:
    """Return a fit to losses with such a noise, half of it common to a seed, and one held out.

    `large`: the seeds of the largest size.
    """
    draw = np.random.default_rng(trial).normal
    ran = dict.fromkeys((*SIZES, HELD[0]), seeds) | {SIZES[-1]: large or seeds}
    common = {(n, s): draw(scale=noise) for n in ran for s in seeds}
    dense = {n: {s: loss(n) + common[n, s] + draw(scale=noise) for s in ran[n]} for n in SIZES}
    places = [*((n, k) for n in SIZES for k in WORKERS), HELD]
    of_method = {
        (n, k): {s: loss(n) + penalty(n, k) + common[n, s] + draw(scale=noise) for s in ran[n]}
        for n, k in places
    }
    made = fit(dense, of_method, ORIGIN, HELD)
    assert made
    return made, float(np.mean([*of_method[HELD].values()]))


def test_without_noise_slopes_and_what_is_held_out_are_exact() -> None:
    made, measured = fit_to(0.0)
    assert made.per_decade and made.per_doubling and made.predicted
    found = [made.penalty.value, made.per_decade.value, made.per_doubling.value]
    assert found == pytest.approx([PENALTY, PER_DECADE, PER_DOUBLING])
    assert made.predicted.value == pytest.approx(measured) == loss(HELD[0]) + penalty(*HELD)
    assert made.at((1_000_000, 16)) == pytest.approx(penalty(1_000_000, 16))
    assert made.per_decade.as_slope.endswith("shrinks") and made.per_doubling.as_slope.endswith(
        "grows"
    )
    alone, _ = fit_to(0.0, seeds=(1,))
    assert alone.per_decade and alone.per_decade.half is None


@pytest.mark.parametrize("large", [SEEDS, (1,)], ids=["all", "one seed of the largest"])
def test_intervals_have_the_truth_nineteen_times_in_twenty(large: Sequence[int]) -> None:
    """Or more often: where the line is right, what it leaves is the noise of seeds once more."""
    trials, hits = 120, np.zeros(4)
    for trial in range(trials):
        made, measured = fit_to(0.01, trial, large=large)
        assert made.per_decade and made.per_doubling and made.predicted
        truths = {
            made.penalty: PENALTY,
            made.per_decade: PER_DECADE,
            made.per_doubling: PER_DOUBLING,
            made.predicted: measured,
        }
        for i, (one, truth) in enumerate(truths.items()):
            assert one.half is not None
            hits[i] += abs(one.value - truth) <= one.half
    assert all(hits / trials > 0.93), hits / trials


def test_what_the_lines_do_not_fit_widens_intervals() -> None:
    """Without noise, a penalty that bends at 300,000 parameters leaves the slope unsure."""
    dense = {n: dict.fromkeys(SEEDS, loss(n)) for n in SIZES}
    bent = {(n, k): max(0.0, log10(n / 300_000)) for n in SIZES for k in WORKERS}
    losses = {p: {s: dense[p[0]][s] + more for s in SEEDS} for p, more in bent.items()}
    made = fit(dense, losses, ORIGIN, HELD)
    assert made and made.per_decade and made.per_decade.half and made.penalty.half
    assert made.per_decade.half > 0.1 and made.penalty.half > 0.05


@pytest.fixture
def ladder_table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Return the table in conf/, which conftest.py hides."""
    monkeypatch.setattr(tables, "table_directory", choices.table_directory)
    return read_table("modern/ladder")


def test_rows_have_the_same_tokens_whatever_the_workers_and_the_rate_of_their_size(
    ladder_table: Table,
) -> None:
    table, ladder = ladder_table, ladder_table.ladder
    assert ladder
    rows = {row.name: row for row in table.rows}
    assert len(rows) == len(table.rows) and next(iter(rows)) == "none_30k_1_1"
    assert [name for name in rows if name.startswith("none")] == [
        *(f"none_30k_1_{length}" for length in (1, 4, 16, 64)),
        *(f"none_100k_1_{length}" for length in (1, 4, 16)),
        *(f"none_300k_1_{length}" for length in (1, 4, 16)),
        "none_1m_1_1",
    ]
    assert {"qsgd_300k_64_1", "diloco_1m_16_1", "powersgd_30k_4_16"} < rows.keys()
    assert not {"powersgd_1m_16_1", "qsgd_30k_64_1", "qsgd_30k_1_4"} & rows.keys()
    own = compose("modern/ladder/diloco")
    tuned = compose_row(rows["diloco_100k_4_1"])
    assert tuned.identity == own.identity
    for name, size in ladder.sizes.items():
        shapes = parameter_shapes({**tuned.config["model"], "width": size.width}, (), 256)
        assert sum(int(np.prod(shape)) for shape in shapes.values()) == size.parameters
        assert 19 < size.windows * size.steps * ladder.context / size.parameters < 21
        assert size.steps % own.config["estimator"].get("every", 30) == 0
        for row in table.rows:
            if (cell := Cell.of(str(row.name))).size == name:
                tokens = row.beside.get("dataset.size", own.config["dataset"]["size"])
                gpus, batch_size = (row.beside[f"trainer.{k}"] for k in ("workers", "batch_size"))
                data = TokenData("", 256, torch.empty(tokens, device="meta"), torch.empty(0), 64)
                assert data.steps_per_epoch(gpus, batch_size) == cell.length * size.steps
                assert gpus * batch_size == size.windows
    large = compose_row(rows["diloco_300k_16_1"]).config
    rate = own.config["optimizer"]["lr"] * 48 / 88 * (128 / 64) ** 0.5
    assert large["optimizer"]["lr"] == pytest.approx(rate, rel=5e-3)
    ranks = {
        (name, size): compose_row(rows[f"{name}_{size}_4_1"]).config["rank"]
        for name in ("powersgd", "powersgd_12")
        for size in ("30k", "100k", "300k")
    }
    assert [*ranks.values()] == [1, 2, 4, 2, 4, 7]


def run(row: TableRow, seed: int, size: int, workers: int, more: float) -> RecordedRun:
    result = result_of(str(row.experiment), *row.overrides, seed=seed, step_seconds=None)
    result |= {"test": {"loss": loss(size) + more + 0.001 * seed}, "workers": workers}
    return RecordedRun(Result.parse(result), f"{row.name}-s{seed}", list)


def test_the_page_and_the_picture_show_the_fits(ladder_table: Table) -> None:
    ladder = ladder_table.ladder
    assert ladder
    shown = [r for r in ladder_table.rows if str(r.name).split("_")[0] in ("none", "qsgd")]
    shown = [r for r in shown if str(r.name).endswith("_1") and "_30k_" not in str(r.name)]
    table = replace(ladder_table, rows=shown)
    runs = []
    for row in table.rows:
        (size, workers, _), method = Cell.of(str(row.name)), str(row.name).split("_")[0]
        n, k = ladder.place(size, workers)
        more = 0.0 if method == "none" else 0.03 + 0.02 * log10(n / 100_272) + 0.01 * log2(k / 4)
        runs += [run(row, seed, n, k, more) for seed in (1, 2)]
    rows = groups_of(table, runs, "paper")
    document = build(table, rows, "paper")
    (line,) = document.lines
    cells = [cell.instead for cell in line.cells]
    slopes = [
        "+0.0300 [+0.0300, +0.0300]",
        "+0.0200 [+0.0200, +0.0200]",
        "+0.0100 [+0.0100, +0.0100]",
    ]
    assert cells[:3] == [slopes[0], f"{slopes[1]}, grows", f"{slopes[2]}, grows"]
    measured = loss(979_360) + 0.03 + 0.02 * log10(979_360 / 100_272) + 0.02 + 0.0015
    held_out = line.cells[4].ours
    assert held_out and held_out.mean == pytest.approx(measured)
    assert float(cells[3].split()[0]) == pytest.approx(measured, abs=1e-3)
    said = markdown(document)
    assert "No compression, 100k: K = 1 " in said and "QSGD, 4 bits, 1m: K = 16 " in said
    fits = fits_of(ladder, rows["paper"])
    assert fits
    assert dict(_slopes(table, runs)) == {"QSGD, 4 bits": pytest.approx(0.02)}
    figure = draw_penalties(fits)
    assert [ax.get_title() for ax in figure.axes] == ["K = 1", "K = 4", "K = 16", "K = 64"]
    assert fits_of(ladder, groups_of(table, runs[:2], "paper")["paper"]) is None
    small = [run for run in runs if run.config["model"]["width"] == 88]
    (line,) = build(table, groups_of(table, small, "paper"), "paper").lines
    known = [cell.instead for cell in line.cells[:4]]
    assert [known[0], *known[2:]] == ["-", f"{slopes[2]}, grows", "-"], "nothing ran at 100k"


def test_mistakes_in_a_ladder_are_named(ladder_table: Table) -> None:
    ladder = ladder_table.ladder
    assert ladder
    node = {"name": "none", "title": "Dense", "runs": {"optimizer.lr": 0.1}, "workers": [5]}
    with pytest.raises(ConfigError, match="5 workers cannot share 32 windows"):
        ladder.rows([{**node, "name": "first"}, node], "modern/ladder", Path("ladder.yaml"))
    with pytest.raises(ConfigError, match="there is no size 2m; type 30k, 100k, 300k, 1m"):
        replace(ladder, tuned=("2m", 4)).rows([node], "modern/ladder", Path("ladder.yaml"))
