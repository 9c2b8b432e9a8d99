"""Train two cells of the ladder's map to the loss, on shaped links: dense, and a method.

    scripts/turns cells         # as root; two hosts want two free cores: some 12 minutes

A cell is a link, and a method of `modern/ladder` at 30k parameters and T = 1 with two workers, one
on each host of scripts/netlab. Dense training in bf16 takes the ladder's steps, the method rho
times as many, with a schedule made for them: then both should end at the same loss, the method
sigma / rho times sooner. c and the seconds of computing are those of the dense runs; nothing else
that is measured here is an input of sigma / rho. Nothing overlaps, as such a gradient is one bucket
for PyTorch, too. The script writes outputs/results/links/cells.json and
outputs/tables/links/cells.md after every run, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gcbench.papers.ladder.ladder import Ladder
from gcbench.papers.ladder.ladder_fit import Place, Rho, fits_of
from gcbench.papers.tables.build import groups_of
from gcbench.papers.tables.configs import compose_row
from gcbench.papers.tables.tables import TableRow, read_table
from gcbench.runner.config.budget import PAPER
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.predict.devices import read_device
from gcbench.runner.predict.sigma import Workload, cost_of, times_shorter
from gcbench.runner.predict.subject import methods_by_exchange
from gcbench.runner.records.environment import describe_environment
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.schema import PHASES
from gcbench.runner.records.store import find_runs
from lib.turns import keep_measured

TABLE, NAME, SIZE, HOSTS = "modern/ladder", "cells", "30k", 2
DENSE = "bf16"
CELLS = {"3mbit": "qsgd", "30mbit": "diloco"}  # a method that should win, and one that should lose
SEEDS = (1, 2, 3)
WITHIN = 0.15
HEADINGS = ["link", "row", "steps", "loss", "seconds", "sooner", "sigma / rho"]
CODING, EXCHANGE = ("encode", "decode"), ("exchange", "wait")
Facts = dict[str, Any]


def main() -> None:
    argparse.ArgumentParser(
        prog="scripts/turns cells",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    ladder, specs, rhos = plan()
    file = Path(f"outputs/results/links/{NAME}.json")
    facts: Facts = json.loads(file.read_text()) if file.exists() else {"cells": []}
    for link, kind in CELLS.items():
        cell = next((one for one in facts["cells"] if one["link"] == link), None)
        if cell is None:
            steps, rho = ladder.sizes[SIZE].steps, rhos[kind].value
            assert rho, "the two methods ran there"
            every = compose_row(specs[kind]).config["estimator"].get("every", 1)
            lengths = {DENSE: steps, kind: every * round(steps * rho / every)}
            cell = {"link": link, "rho": rhos[kind][:3], "rows": []}
            for name, steps in lengths.items():
                row = {"name": name, "title": specs[name].title, "steps": steps, "runs": []}
                cell["rows"].append(row)
            facts["cells"].append(cell)
        for seed in SEEDS:
            for row in cell["rows"]:
                if all(run["seed"] != seed for run in row["runs"]):
                    row["runs"].append(train(ladder, specs[row["name"]], row["steps"], link, seed))
            cell |= predicted([specs[row["name"]] for row in cell["rows"]], cell["rows"])
            facts |= describe_environment().model_dump()
            keep_measured(NAME, facts, page(facts))


def plan() -> tuple[Ladder, dict[str, TableRow], dict[str, Rho]]:
    """Return the ladder, its rows by name, and their rho with two workers."""
    table = read_table(TABLE)
    rows = groups_of(table, find_runs(["outputs"]).runs, PAPER)[PAPER]
    ladder, fits = table.ladder, table.ladder and fits_of(table.ladder, rows)
    if not (ladder and fits):
        sys.exit(f"scripts/turns cells: outputs/ has no runs of {TABLE}")
    ending = f"_{SIZE}_{ladder.tuned[1]}_1"
    specs = {
        str(row.name).removesuffix(ending): row
        for row in table.rows
        if str(row.name).endswith(ending)
    }
    place = Place(ladder.sizes[SIZE].parameters, HOSTS, 1)
    return ladder, specs, {k: fits.fits.methods[specs[k].title].rho(place) for k in CELLS.values()}


def train(ladder: Ladder, row: TableRow, steps: int, link: str, seed: int) -> Facts:
    """Return what a run on the hosts ended with."""
    windows = ladder.sizes[SIZE].windows
    typed = {
        **row.beside,
        "dataset.size": windows * (steps * ladder.context + 1),
        "trainer.workers": HOSTS,
        "trainer.batch_size": windows // HOSTS,
        "trainer.threads": 1,
        "seed": seed,
        "logger": "none",
    }
    group, _, name = str(row.experiment).rpartition("/")
    with tempfile.TemporaryDirectory() as folder:
        netlab = [str(Path(__file__).parents[1] / "netlab"), "--hosts", str(HOSTS), "--rate", link]
        run = ["gcbench", f"+experiment/{group}={name}", f"directory={folder}/run"]
        run += [f"{key}={value}" for key, value in typed.items()]
        if code := subprocess.run([*netlab, "--", *run]).returncode:
            sys.exit(code)
        result = RunFiles(Path(folder) / "run").read_result()
    assert result and result.test and result.seconds
    seconds = {name: phase.mean for name, phase in result.seconds.items()}
    return {"seed": seed, "steps": result.steps, "loss": result.test["loss"], "seconds": seconds}


def predicted(specs: Sequence[TableRow], rows: Sequence[Facts]) -> Facts:
    """Return c and the seconds of computing, of dense training, and sigma of the method."""
    runs = rows[0]["runs"]
    seconds = {name: fmean(run["seconds"][name] for run in runs) for name in PHASES}
    exchange = sum(seconds[name] for name in EXCHANGE)
    compute = seconds["step"] - exchange - sum(seconds[name] for name in CODING)
    device, costs = read_device("cpu"), []
    for spec in specs:
        forms = methods_by_exchange(compose_row(spec).config, spec.title, device, HOSTS)
        values = next(iter(forms.values())).dense_bytes / 4
        # A worker's tokens have no part in what is asked of it.
        workload = Workload(0, 1, device.backward_share, compute / values)
        costs.append(cost_of(forms, HOSTS, device, workload))
    dense, method = costs
    c = exchange / compute
    return {"c": c, "compute_seconds": compute, "sigma": times_shorter(dense, method, c, workload)}


def page(facts: Facts) -> str:
    """Return the page of what was measured so far."""
    table, said = [], []
    for cell in facts["cells"]:
        dense, other = cell["rows"]
        totals = [
            fmean(run["steps"] * run["seconds"]["step"] for run in row["runs"])
            for row in (dense, other)
        ]
        sooner, expected = totals[0] / totals[1], cell["sigma"] * dense["steps"] / other["steps"]
        for row, total in zip((dense, other), totals, strict=True):
            losses = [run["loss"] for run in row["runs"]]
            spread = f" +- {stdev(losses):.3f}" if len(losses) > 1 else ""
            ratios = [f"{sooner:.2f}", f"{expected:.2f}"] if row is other else ["", ""]
            table.append(
                [
                    cell["link"],
                    row["title"],
                    str(row["steps"]),
                    f"{fmean(losses):.3f}{spread} (n={len(losses)})",
                    f"{total:.1f}",
                    *ratios,
                ]
            )
        verdict = "as" if abs(sooner / expected - 1) <= WITHIN else "not as"
        low, high = (cell["sigma"] / rho for rho in cell["rho"][:0:-1])
        said.append(
            f"At {cell['link']}, c is {cell['c']:.2g}, sigma {cell['sigma']:.2f} and rho "
            f"{cell['rho'][0]:.2f}: {other['title']} should be {expected:.2f} [{low:.2f}, "
            f"{high:.2f}] times sooner. It is {sooner:.2f} times, {verdict} predicted to "
            f"{100 * WITHIN:.0f} %."
        )
    words = "\n".join(f"- {one}" for one in said)
    return (
        f"# Two cells of the map, trained to the loss\n\n"
        f"{markdown(TextTable(HEADINGS, table, left=(0, 1)))}\n\n{words}\n\n"
        f"The ladder at {SIZE} parameters and T = 1, two hosts with one worker each. The method "
        "has rho times the steps of dense training, with a schedule made for them, which makes the "
        "losses equal if rho is right; its seconds are those of all its steps. "
        "`scripts/turns cells`\n"
    )
