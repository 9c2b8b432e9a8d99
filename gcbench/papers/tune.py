"""The command `gcbench papers tune`, by which every method gets the same number of tries."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise, product
from math import isclose
from pathlib import Path

import torch
from pydantic import Field

from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.papers.claims.missing import SEEDS, lacking_seeds
from gcbench.papers.job_queue import describe_outcome, run_commands
from gcbench.papers.tables.configs import Composition, composition_of, read_key
from gcbench.papers.tables.rates import RATE, Grid, find_grid, is_swept
from gcbench.papers.tables.tables import Column
from gcbench.runner.arguments import Arguments, read_arguments
from gcbench.runner.config.checks import refuse_empty_sweep
from gcbench.runner.config.compose import resolve_overrides, split_sweep
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.console import TextTable, print_table
from gcbench.runner.differences import flat_differences
from gcbench.runner.launch.estimate import Estimates
from gcbench.runner.launch.same import read_result_or_warn
from gcbench.runner.records.files import ENDED
from gcbench.runner.records.store import RecordedRun, find_runs, read_run
from gcbench.runner.report.document import EMPTY, Heading, Summary, format_number, format_summary
from gcbench.runner.report.measures import SPLIT, VALID, main_score

# What the command sets itself, or what would give all tries one directory.
REFUSED = {
    "seed": "type seeds=, for the seeds of the tries",
    SPLIT: "tries are tested on the validation part, and reported runs on the test part",
    "directory": "every try has a directory of its own; type outputs=",
}
TEST = "test"


class Tune(Arguments):
    """Choose the learning rate of a run, or of each row of a sweep, by the same number of tries:
    three rates a factor of two apart around the row's own, with two seeds each, and one rate more
    while the best is at an edge, all tested on the validation part of the data. Then the chosen
    rate runs with the seeds 1, 2 and 3, tested on the test part. Whatever is typed for a run or a
    sweep may be typed here. Runs with a result count: the same command continues after Ctrl-C.
    """

    usage = "gcbench papers tune [list] [key=value ...]"
    examples = """
gcbench papers tune model=mlp dataset=digits compressor=qsgd,top_k     two methods, equally tuned
gcbench papers tune '+experiment/modern/gpt=glob(*)' budget=cpu        each row of a table
gcbench papers tune list '+experiment/modern/gpt=glob(*)' budget=cpu   what would run, its cost
"""
    takes_other_keys = True  # those of the run

    tuned: str = Field(RATE, alias="key")
    """what is tuned: any key of the run with a number above 0"""
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    """multiples of the row's own value"""
    seeds: tuple[int, ...] = (1, 2)
    """seeds of the tries"""
    tries: int = 12
    """the most tries of a row, after which its best may be at an edge"""
    report: bool = True
    """run the chosen value on the test part; false: print the command"""
    jobs: int = 1
    """runs at once; best with trainer.launcher=virtual trainer.threads=1"""


@dataclass
class TunedRow:
    """A row of a sweep, and its tries and reported runs, which differ in key, part and seed."""

    asked: Tune
    typed: tuple[str, ...]  # for its run, without the tuned key
    expected: Composition
    own: float  # its own value of the key
    label: str = ""
    runs: list[RecordedRun] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # what failed, and why

    @property
    def tries(self) -> list[RecordedRun]:
        """Return the runs on the validation part, the newest of each value and seed."""
        tries = (run for run in self.runs if run.flat[SPLIT] == VALID)
        return list({(run.flat[self.asked.tuned], run.seed): run for run in tries}.values())

    @property
    def grid(self) -> Grid | None:
        """Return the tries and the best value as reports see them; None for a single value."""
        scored = (main_score(run.result) for run in self.tries if run.done)
        name, _ = next(filter(None, scored), ("loss", 0.0))
        return find_grid([], self.tries, self.expected, Column(name, name, name), self.asked.tuned)

    @property
    def chosen(self) -> float | None:
        """Return the best value once all tries were made; None if none of them ended well."""
        return None if self.missing_tries() or not self.grid else self.grid.chosen

    @property
    def reported(self) -> list[RecordedRun]:
        """Return the runs of the chosen value that were tested on the test part."""
        chosen, key = self.chosen, self.asked.tuned
        return [run for run in self.runs if run.flat[SPLIT] == TEST and run.flat[key] == chosen]

    def missing_tries(self) -> list[tuple[float, int]]:
        """Return the values and seeds to try next; none if the row has had its number of them."""
        first = self._missing(self._near(self.own * rate) for rate in sorted(self.asked.rates))
        more = first or self.beyond()
        return more if first or len(self.tries) + len(more) <= self.asked.tries else []

    def missing_reports(self) -> tuple[int, ...]:
        """Return the seeds that are to be reported and have not run on the test part."""
        return lacking_seeds(self.reported, SEEDS) if self.asked.report else ()

    def command(self, value: float, part: str, seeds: Iterable[int]) -> list[str]:
        """Return what is typed for runs with this value, tested on this part of the data."""
        chosen = [f"{self.asked.tuned}={format_value(value)}", f"{SPLIT}={part}"]
        return [*self.typed, *chosen, f"seed={','.join(map(str, seeds))}"]

    def add(self, run: RecordedRun) -> None:
        """Add a run if it has ended, and is a try or a reported run of this row."""
        own = self.expected.run.experiment, self.expected.choices["budget"]
        if (run.experiment, run.budget) == own and run.status in ENDED:
            differs = flat_differences(run.flat, self.expected.flat)
            if not differs or is_swept(differs, self.asked.tuned):
                self.runs.append(run)

    def beyond(self) -> list[tuple[float, int]]:
        """Return the tries that the best value asks for: its other seeds, the next at an edge."""
        if self.grid is None or (best := self.grid.chosen) is None:
            return []
        low, *_, high = sorted({run.flat[self.asked.tuned] for run in self.tries})
        steps = [b / a for a, b in pairwise(sorted(self.asked.rates))]
        further = {low: best / steps[0], high: best * steps[-1]}
        return self._missing([best, *(self._near(further[at]) for at in further if at == best)])

    def _missing(self, values: Iterable[float]) -> list[tuple[float, int]]:
        known = {(run.flat[self.asked.tuned], run.seed) for run in self.tries}
        wanted = [(value, seed) for value in values for seed in self.asked.seeds]
        return [one for one in wanted if one not in known]

    def _near(self, value: float) -> float:
        """Return the row's own value or one that was tried, if it is this one, or a rounded one."""
        known = [self.own, *(run.flat[self.asked.tuned] for run in self.tries)]
        new = float(f"{value:.6g}")
        new = int(new) if isinstance(self.own, int) and new.is_integer() else new
        return next((one for one in known if isclose(one, value, rel_tol=1e-5)), new)


def make_row(asked: Tune, overrides: Sequence[str]) -> TunedRow:
    """Return the row of a run, without its runs. Raises ConfigError if it cannot be tuned."""
    config, _ = resolve_overrides(overrides)
    own = read_key(config.as_dict(), asked.tuned)
    if isinstance(own, bool) or not isinstance(own, (int, float)) or own <= 0:
        raise ConfigError(
            f"key={asked.tuned}: this is no number above 0 in {' '.join(['gcbench', *overrides])}; "
            f"type a key that is one, or {asked.tuned}=NUMBER, too"
        )
    if "split" not in config.dataset.model_fields_set:
        data = config.choices["dataset"]
        raise ConfigError(f"dataset={data}: tries need {SPLIT}={VALID}, a key that this one lacks")
    if config.trainer.eval_every is None:
        raise ConfigError("trainer.eval_every=null: tries are compared by tests; type a number")
    typed = tuple(one for one in overrides if one.partition("=")[0].lstrip("+") != asked.tuned)
    row = TunedRow(asked, typed, composition_of(json.loads(json.dumps(config.as_dict()))), own)
    if asked.tuned != RATE:  # whose values are all valid, and composing takes time
        for value, seed in row.missing_tries():
            resolve_overrides(row.command(value, VALID, [seed]))
    return row


def tune(typed: Sequence[str]) -> None:
    """Tune what was typed. Raises ConfigError with one sentence for a mistake, before any run."""
    asked = read_arguments(Tune, typed)
    if asked.plain not in ((), ("list",)):
        raise ConfigError(
            f"{' '.join(asked.plain)}: type gcbench papers tune list, or key=value of a run"
        )
    if len(set(asked.rates)) < 2:
        raise ConfigError(f"rates={asked.rates[0]:g}: type at least two, as in rates=0.5,1,2")
    if asked.tries < (least := len(asked.rates) * len(asked.seeds)):
        raise ConfigError(f"tries={asked.tries}: rates= and seeds= ask for {least}; type as many")
    for override in asked.others:
        if advice := REFUSED.get(override.partition("=")[0].lstrip("+")):
            raise ConfigError(f"{override}: {advice}")
    rows, estimates = find_rows(asked)
    print_table(overview(rows, estimates))
    if not asked.plain:
        run_rows(rows)


def find_rows(asked: Tune) -> tuple[list[TunedRow], Estimates]:
    """Return the rows that were typed, with the runs that count for them, and what runs cost."""
    refuse_empty_sweep(asked.others, None)
    points = split_sweep(asked.others)
    rows = [make_row(asked, point) for point in points]
    for row, point in zip(rows, points, strict=True):
        own = [one for one in point if not all(one in other for other in points)]
        shown = [one.rpartition("=")[2] if one.startswith("+experiment/") else one for one in own]
        row.label = " ".join(shown) or str(row.expected.run.experiment or "this run")
    runs = find_runs(sorted({row.expected.run.outputs for row in rows})).runs
    for row, run in product(rows, runs):
        row.add(run)
    return rows, Estimates(run.result for run in runs)


def overview(rows: Sequence[TunedRow], estimates: Estimates) -> TextTable:
    """Return one line per row: its tries, what they chose, both scores, and the runs it lacks."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines, known, unknown = [], 0.0, 0
    for row in rows:
        tries, chosen = row.missing_tries(), row.chosen
        reports = SEEDS if tries and row.asked.report else row.missing_reports()
        count = len(tries) + len(reports)
        cost = estimates.core_seconds(row.expected.config, device)
        known, unknown = known + count * (cost or 0), unknown + count * (cost is None)
        best = f"({row.own:g})" if chosen is None else f"{chosen:g}{' edge' * bool(row.beyond())}"
        valid = [rate.score for rate in row.grid.rates if rate.lr == chosen] if row.grid else []
        score = format_number(valid[0], None) if valid and valid[0] is not None else EMPTY
        lines.append([row.label, str(len(row.tries)), best, score, _tested(row), str(count)])
    note = (
        f"To run: {known / 3600:.1f} {'GPU' if device == 'cuda' else 'core'}-hours"
        f"{f', and {unknown} runs of unknown cost' * (unknown > 0)}; more where the best is at an "
        "edge. (In brackets: a row's own value; none is chosen yet.)"
    )
    headings = ["row", "tries", rows[0].asked.tuned, VALID, TEST, "to run"]
    return TextTable(headings, lines, notes=[note])


def run_rows(rows: Sequence[TunedRow]) -> None:
    """Run what rows lack, one row after the other, and print the tries of each."""
    for row in rows:
        try:
            while not row.failed and (tries := row.missing_tries()):
                _run(row, [row.command(value, VALID, [seed]) for value, seed in tries])
            if not row.failed and (chosen := row.chosen) is not None:
                _run(row, [row.command(chosen, TEST, [seed]) for seed in row.missing_reports()])
        finally:
            print_table(tries_of(row))
    if rows[1:]:
        print_table(overview(rows, Estimates([])))
    if failed := [reason for row in rows for reason in row.failed]:
        raise RunFailed(f"the same command tries again what failed: {'; '.join(failed)}")


def _run(row: TunedRow, commands: Sequence[Sequence[str]]) -> None:
    """Run commands, and add what they leave to the row. Ctrl-C raises KeyboardInterrupt."""
    started = [[sys.executable, "-m", "gcbench", *command] for command in commands]
    left, stopped = len(commands), False
    for ended in run_commands(started, [{}] * row.asked.jobs):
        left, stopped = left - 1, stopped or ended.stopped
        command = commands[ended.index]
        directory = Path(resolve_overrides(command)[1])
        result = read_result_or_warn(directory / "result.json")
        name = " ".join([row.label, *command[len(row.typed) :]])
        print(f"{datetime.now():%H:%M} {name}: {describe_outcome(ended, result)}", flush=True)
        if result and result.status in ENDED:
            row.add(read_run(directory))
        elif not ended.stopped:
            row.failed.append(f"{name}: {ended.said}")
    if stopped or left:
        print("Stopped; the same command goes on.", flush=True)
        raise KeyboardInterrupt


def tries_of(row: TunedRow) -> TextTable:
    """Return a row's tries, value by value, with what was chosen and how it is reported."""
    seeds, lines = sorted({run.seed for run in row.tries}), []
    for rate in row.grid.rates if row.grid else []:
        cells: dict[int, str] = {run.seed: run.status for run in rate.runs}
        cells |= {seed: format_number(score, None) for seed, score in rate.scores.items()}
        mean = EMPTY if rate.score is None else format_number(rate.score, None)
        mark = "chosen" if rate.lr == row.chosen else ""
        lines.append([f"{rate.lr:g}", *(cells.get(seed, EMPTY) for seed in seeds), mean, mark])
    measure = row.grid.measure if row.grid else "no score"
    title = f"{row.label}: {measure} on the validation part, {len(row.tries)} tries"
    if (chosen := row.chosen) is None:
        notes = ["Nothing is chosen: tries are missing, or none ended well with all its seeds."]
    else:
        edge = f"{chosen:g} is at an edge of what was tried; type a larger tries= to go on"
        command = shlex.join(["gcbench", "-m", *row.command(chosen, TEST, SEEDS)])
        notes = [edge] * bool(row.beyond()) + [f"On the test part: {_tested(row)}, by {command}"]
    headings = [row.asked.tuned, *(f"seed {seed}" for seed in seeds), "mean", ""]
    return TextTable(headings, lines, title=title, notes=notes)


def _tested(row: TunedRow) -> str:
    scores = [score[1] for run in row.reported if run.done and (score := main_score(run.result))]
    heading = Heading("score", "score", deviation=True)
    return format_summary(Summary.of(scores), heading) if scores else EMPTY
