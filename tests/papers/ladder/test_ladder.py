"""Ladders: rows for every size, length and number of workers, fits, the page and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from math import log2, log10
from pathlib import Path

import numpy as np
import pytest
import torch
from results import result_of

from gcbench.core.errors import ConfigError
from gcbench.papers.ladder.ladder import Cell
from gcbench.papers.ladder.ladder_fit import (
    Fits,
    Place,
    draw_penalties,
    fit,
    fits_of,
    place_of,
    with_stand_in,
)
from gcbench.papers.reach.reach_map import _slopes
from gcbench.papers.tables import tables
from gcbench.papers.tables.build import build, groups_of
from gcbench.papers.tables.configs import compose, compose_row
from gcbench.papers.tables.tables import Table, TableRow, read_table
from gcbench.runner.config import choices
from gcbench.runner.data import TokenData
from gcbench.runner.launch.instantiate import parameter_shapes
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import markdown

pytestmark = pytest.mark.usefixtures("here")

SEEDS = (1, 2, 3)
LENGTHS = {29_400: (1, 4, 16), 100_272: (1, 4, 16), 310_552: (1, 4)}
ORIGIN = Place(100_272, 4, 1)
HELD = [Place(979_360, 16, 1), Place(310_552, 4, 16), Place(29_400, 4, 64)]
HELD_OUT = [("some", place) for place in HELD] + [("", p._replace(workers=1)) for p in HELD]
RAN = [
    Place(n, k, t)
    for n, some in LENGTHS.items()
    for t, k in product(some, (1, 4, 16))
    if t == 1 or k > 1
]
Law = Callable[[Place], float]


def chinchilla(place: Place) -> float:
    """Return a loss as Hoffmann et al. (2022) have it, of no form that is fitted."""
    n, _, t = place
    return 0.6 + 28 * n**-0.32 + 13 * (n * t) ** -0.2


def power(place: Place) -> float:
    n, _, t = place
    return math.exp(0.8 - 0.4 * log10(n / 1e5) - 0.12 * log2(t) + 0.006 * log2(t) ** 2)


def more(place: Place) -> float:
    """Return the logarithm of a method's loss over that of dense training."""
    n, k, t = place
    return 0.12 + 0.03 * log10(n / 1e5) + 0.03 * log2(k / 4) - 0.02 * log2(t)


def losses(
    law: Law, noise: float = 0.0, trial: int = 0, beyond: Law = more
) -> tuple[dict[Place, dict[int, float]], dict[Place, dict[int, float]]]:
    """Return losses of dense training and of a method, half of whose noise a seed has in common."""
    normal = np.random.default_rng(trial).normal
    dense: dict[Place, dict[int, float]] = {}
    common: dict[Place, dict[int, float]] = {}
    of_method = {}
    for place in (*RAN, *HELD):
        whole = place._replace(workers=1)
        if whole not in dense:
            common[whole] = {s: normal(scale=noise) for s in SEEDS}
            dense[whole] = {
                s: law(whole) * math.exp(common[whole][s] + normal(scale=noise)) for s in SEEDS
            }
        of_method[place] = {
            s: law(place) * math.exp(beyond(place) + common[whole][s] + normal(scale=noise))
            for s in SEEDS
        }
    return dense, of_method


def fitted(
    dense: Mapping[Place, Mapping[int, float]], of_method: Mapping[Place, Mapping[int, float]]
) -> Fits:
    made = fit(dense, {"some": of_method}, ORIGIN, HELD_OUT)
    assert made
    return made


def true_rho(law: Law, place: Place, beyond: Law = more) -> float:
    """Return rho by bisection."""
    low, high = -4.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        there = place._replace(length=2**middle)
        short = law(there) * math.exp(beyond(there)) > law(place)
        low, high = (middle, high) if short else (low, middle)
    return float(2**low / place.length)


def test_without_noise_rho_and_what_is_held_out_are_exact() -> None:
    made = fitted(*losses(power))
    for place in (Place(29_400, 4, 1), Place(100_272, 16, 2), Place(200_000, 8, 1)):
        rho = made.methods["some"].rho(place)
        assert rho.value == pytest.approx(true_rho(power, place), rel=1e-3)
        assert rho.low == pytest.approx(rho.value, rel=1e-3) and rho.high <= rho.value * 1.001
    for name, place in HELD_OUT:
        loss = power(place) * math.exp(more(place) if name else 0.0)
        found = made.held[name, place]
        assert [found.low, found.value, found.high] == pytest.approx([loss] * 3, rel=1e-4)


def bump(place: Place) -> float:
    """Return a difference that rises steeply with the optimizer's steps and falls slowly."""
    n, k, t = place
    steps = log2(t) + 0.4 * log2(n / 3e4) - 1.2
    return 0.1 * math.exp(-(steps**2) / (8 if steps > 0 else 2)) + 0.01 * log2(k / 4)


@pytest.mark.parametrize("beyond", [more, bump])
def test_intervals_have_the_truth_of_a_known_law_nineteen_times_in_twenty(beyond: Law) -> None:
    """Or a little less or more often, as the law has no form that is fitted."""
    places = [Place(29_400, 4, 4), Place(310_552, 4, 1)]
    hits: dict[object, list[bool]] = {}
    for trial in range(100):
        dense, of_method = losses(chinchilla, 0.006, trial, beyond)
        made = fitted(dense, of_method)
        for place in places:
            rho = made.methods["some"].rho(place)
            assert rho.value is not None
            truth = true_rho(chinchilla, place, beyond)
            hits.setdefault(place, []).append(rho.low <= truth <= rho.high)
        for name, place in HELD_OUT:
            measured = np.mean([*(of_method if name else dense)[place].values()])
            one = made.held[name, place]
            hits.setdefault((name, place), []).append(one.low <= measured <= one.high)
    shares = {key: np.mean(some) for key, some in hits.items()}
    assert len(shares) == 8 and all(0.85 <= share <= 1 for share in shares.values()), shares
    assert 0.9 <= np.mean([*shares.values()]) < 0.999, "intervals are wider than they need be"


def test_a_place_that_is_held_out_changes_nothing_but_what_is_said_of_it() -> None:
    dense, of_method = losses(chinchilla, 0.006)
    before = fitted(dense, of_method)
    for place in HELD:
        of_method[place] = {s: 2 * loss for s, loss in of_method[place].items()}
        whole = place._replace(workers=1)
        dense[whole] = {s: 3 * loss for s, loss in dense[whole].items()}
    after = fitted(dense, of_method)
    assert before.held == after.held
    for place in (Place(29_400, 4, 1), Place(310_552, 16, 1)):
        assert before.methods["some"].rho(place) == after.methods["some"].rho(place)
    for place in HELD:
        del of_method[place], dense[place._replace(workers=1)]
    assert fitted(dense, of_method).methods["some"].rho(Place(29_400, 4, 1)) == before.methods[
        "some"
    ].rho(Place(29_400, 4, 1))


def test_what_the_trend_does_not_fit_widens_intervals() -> None:
    """Without noise, a difference that zigzags over K leaves rho unsure between places."""

    def zigzag(place: Place) -> float:
        return more(place) + 0.02 * (place.workers == 4)

    place = Place(29_400, 4, 1)
    smooth, bent = (
        fitted(*losses(power, beyond=one)).methods["some"].rho(place) for one in (more, zigzag)
    )
    assert smooth.value and smooth.high / smooth.low < 1.01
    assert bent.value and bent.low < smooth.value < bent.high and bent.high / bent.low > 1.3


def test_a_misfit_is_told_by_other_methods_too() -> None:
    """Three places and three coefficients leave nothing of their own."""

    def bent(place: Place) -> float:
        return more(place) * (1 + 0.5 * log10(place.parameters / 3e4) * log2(place.length))

    dense, of_method = losses(power, 0.002, beyond=bent)
    few = {p: s for p, s in of_method.items() if p.workers == 4 and p.length < 5}
    few = {p: s for p, s in few.items() if p.parameters * p.length < 2e5}
    alone = fit(dense, {"few": few}, ORIGIN, HELD_OUT)
    both = fit(dense, {"few": few, "many": of_method}, ORIGIN, [("many", p) for p in HELD])
    assert alone and both
    for made, spare in ((alone, 0), (both, 2)):
        own = made.methods["few"].own
        assert len(few) == len(own.coefficients) == 3 and own.misfit.freedom == spare
        assert own.values(own.means.places) == pytest.approx([*own.means.values])
    assert math.isinf(alone.methods["few"].rho(Place(29_400, 4, 1)).high)


def test_rho_is_known_only_where_the_method_ran() -> None:
    dense, of_method = losses(power, 0.002)
    few = {p: some for p, some in of_method.items() if p not in HELD and p.parameters < 2e5}
    one = fitted(dense, few).methods["some"]
    assert one.rho(Place(50_000, 8, 2)).value is not None
    for place in (Place(310_552, 4, 1), Place(50_000, 32, 1)):
        assert one.rho(place) == (None, 0.0, math.inf, "it did not run there")
    for place in (Place(20_000, 4, 1), Place(50_000, 4, 64)):
        assert one.rho(place).why == "dense training did not run there"
    beyond = one.rho(Place(29_400, 16, 16))
    assert beyond.value is None and beyond.low == pytest.approx(1) and math.isinf(beyond.high)
    assert one.rho(Place(29_400, 16, 12)).text == "at least 1.33"
    alone = {p: some for p, some in few.items() if p[1:] == (4, 4)}
    assert fitted(dense, alone).methods["some"].rho(Place(29_400, 4, 4)).text == "at least 1"
    better = {p: {s: 0.7 * loss for s, loss in some.items()} for p, some in few.items()}
    assert fitted(dense, better).methods["some"].rho(Place(29_400, 4, 1)).text.startswith("at most")
    # One seed says nothing about the others.
    first = [{p: {1: some[1]} for p, some in losses.items()} for losses in (dense, few)]
    assert fitted(*first).methods["some"].rho(Place(29_400, 4, 1)).text.endswith("[?, ?]")


def test_bfloat16_stands_for_dense_runs_that_are_lacking_but_not_beside_itself() -> None:
    one, other = Place(29_400, 1, 1), Place(29_400, 1, 4)
    whole = {one: {1: 2.0, 2: 2.1}}
    half = {one._replace(workers=k): {1: 2.0 + k, 2: 2.1, 3: 2.2 + k} for k in (4, 1)}
    half[other._replace(workers=4)] = {1: 1.5}
    dense = with_stand_in(whole, half)
    assert dense == {one: {1: 2.0, 2: 2.1, 3: 3.2}, other: {1: 1.5}}
    made = fit(dense, {"half": half}, ORIGIN, (), {"half": whole})
    assert made and [*made.methods["half"].losses] == [p for p in half if p.length == 1]
    assert made.methods["half"].own.means.values[1] == pytest.approx(np.log(3 / 2) / 2)


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


def run(row: TableRow, seed: int, place: Place, beyond: float) -> RecordedRun:
    result = result_of(str(row.experiment), *row.overrides, seed=seed, step_seconds=None)
    loss = power(place) * math.exp(beyond + 0.001 * seed)
    result |= {"test": {"loss": loss}, "workers": place.workers}
    return RecordedRun(Result.parse(result), f"{row.name}-s{seed}", list)


def test_the_page_and_the_picture_show_the_fits(ladder_table: Table) -> None:
    ladder = ladder_table.ladder
    assert ladder
    shown = [r for r in ladder_table.rows if str(r.name).split("_")[0] in ("none", "qsgd")]
    table = replace(ladder_table, rows=shown)
    runs = []
    for row in table.rows:
        place, method = place_of(ladder, Cell.of(str(row.name))), str(row.name).split("_")[0]
        runs += [run(row, seed, place, more(place) * (method != "none")) for seed in (1, 2)]
    rows = groups_of(table, runs, "paper")
    document = build(table, rows, "paper")
    (line,) = document.lines
    cells = {h.title: cell.instead for h, cell in zip(document.headings, line.cells, strict=True)}
    rho = true_rho(power, Place(29_400, 4, 1))
    assert cells["rho at 30k, T = 1"].startswith(f"{rho:.2f} [{rho:.2f}, ")
    assert not any("1m" in title for title in cells), "all of it is held out"
    said = markdown(document)
    assert "7 of 7 losses measured are inside" in said
    held = power(HELD[0]) * math.exp(more(HELD[0]) + 0.0015)
    assert f"QSGD, 4 bits, 1m, K = 16, T = 1: predicted {held:.4f}" in said
    assert "No compression, 300k, T = 16: predicted" in said
    beyond = f"{100 * math.expm1(more(ORIGIN)):+.1f}"
    assert f": {beyond} % [{beyond}, {beyond}] over dense with 100,272 parameters, K = 4, T" in said
    assert "+3.0 % [+3.0, +3.0] with twice the workers" in said
    assert "No compression, 100k, T = 4: K = 1 " in said
    fits = fits_of(ladder, rows["paper"])
    assert fits
    (slope,) = dict(_slopes(table, runs)).values()
    near, far = (Place(n, 4, 1) for n in (100_272, 100_272 * 1.001))
    gained = [power(p) * (math.exp(more(p)) - 1) for p in (near, far)]
    assert slope == pytest.approx((gained[1] - gained[0]) / log10(1.001), rel=0.01)
    figure = draw_penalties(fits)
    assert [ax.get_title() for ax in figure.axes][:3] == [f"K = {k}, T = 1" for k in (1, 4, 16)]
    assert fits_of(ladder, groups_of(table, runs[:2], "paper")["paper"]) is None


def test_mistakes_in_a_ladder_are_named(ladder_table: Table) -> None:
    ladder = ladder_table.ladder
    assert ladder
    node = {"name": "none", "title": "Dense", "runs": {"optimizer.lr": 0.1}, "workers": [5]}
    with pytest.raises(ConfigError, match="5 workers cannot share 32 windows"):
        ladder.rows([{**node, "name": "first"}, node], "modern/ladder", Path("ladder.yaml"))
    with pytest.raises(ConfigError, match="there is no size 2m; type 30k, 100k, 300k, 1m"):
        replace(ladder, tuned=("2m", 4)).rows([node], "modern/ladder", Path("ladder.yaml"))
