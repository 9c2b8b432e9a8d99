"""The command `gcbench papers track`, which runs an entry of the track and judges it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from gcbench.core.errors import ConfigError
from gcbench.papers.claims.missing import lacking_seeds
from gcbench.papers.job_queue import environment_of_child
from gcbench.papers.tables.build import build, groups_of
from gcbench.papers.tables.configs import compose, experiment_override
from gcbench.papers.tables.rows import Row
from gcbench.papers.tables.tables import read_table
from gcbench.papers.track.track import Track
from gcbench.papers.track.track_verdicts import ENTRY, judge
from gcbench.runner.arguments import Arguments, Option, read_arguments
from gcbench.runner.check.command import refuse_unknown
from gcbench.runner.config.budget import PAPER
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.config.resolve import resolve
from gcbench.runner.identity import flatten_config, identify
from gcbench.runner.records.store import find_runs
from gcbench.runner.report.document import show_document

TABLE = "modern/track"


class Entry(Arguments):
    """Judges a method by the rules of the track (conf/track/README.md): runs gcbench check, trains
    it with every seed, and the baselines with those that they lack, and prints the table. The exit
    status is 0 if the entry stands. Runs with a result count: the same command continues after
    Ctrl-C."""

    usage = "gcbench papers track METHOD [key=value ...] [--config-dir DIR]"
    examples = """
gcbench papers track mine --config-dir my_conf      mine.py, my_conf/compressor/mine.yaml
gcbench papers track powersgd optimizer.lr=0.004    a method of gcbench, at another rate
"""
    takes_other_keys = True

    outputs: str = "outputs"
    """folder for runs"""
    results: tuple[str, ...] = ()
    """folders with more runs, as the kept ones of the baselines in gcbench's outputs"""
    config_dir: Annotated[str | None, Option()] = None
    """a folder with your compressor/NAME.yaml"""


def track(typed: Sequence[str]) -> None:
    """Judge an entry. Raises ConfigError for a mistake or a broken rule before anything runs."""
    asked, table = read_arguments(Entry, typed), read_table(TABLE)
    if len(asked.plain) != 1:
        raise ConfigError("type one method, as in gcbench papers track powersgd rank=2")
    (method,) = asked.plain
    refuse_unknown([method], asked.config_dir)
    own = [experiment_override(f"{TABLE}/{ENTRY}"), f"compressor={method}", *asked.others]
    assert table.track
    identity = _identity(own, asked.config_dir, table.track)
    from gcbench.runner.check.report import check_method  # imports torch
    from gcbench.runner.check.subject import subject_of

    if not check_method(subject_of((), own, asked.config_dir)):
        raise RunFailed(f"{method}: it fails gcbench check, so that nothing was trained")
    for command in _lacking(asked, own, identity, table.track.seeds):
        options = ["--config-dir", asked.config_dir] if asked.config_dir else []
        more = [f"outputs={asked.outputs}", "logger=none", *options]
        _run([sys.executable, "-m", "gcbench", "-m", *command, *more])
    rows = _rows(asked)
    show_document(build(table, {PAPER: rows}, PAPER), "terminal")
    mine = next((row for row in rows if row.runs and row.runs[0].result.identity == identity), None)
    verdict = judge(table.track, mine, rows) if mine else None
    print(f"{method} {verdict.text if verdict else 'has not run'}.")
    if not (verdict and verdict.stands):
        sys.exit(1)


def _identity(own: Sequence[str], config_dir: str | None, track: Track) -> str:
    """Return the identity of an entry's runs; raise ConfigError if they break the rules."""
    if seed := next((one for one in own if one.startswith("seed=")), None):
        raise ConfigError(f"{seed}: every entry has seeds {_listed(track.seeds)}; leave it out")
    config = resolve(compose_overrides(own, config_dir)).as_dict()
    rules = compose(f"{TABLE}/{ENTRY}").flat
    for broken, why in track.breaches(flatten_config(config), rules).items():
        raise ConfigError(f"{broken}: {why}; leave it out")
    return identify(config)


def _rows(asked: Entry) -> list[Row]:
    """Return the rows of the baselines, and of the entries in `outputs`.

    Entries in `results` are left out: their code may have changed since, and anybody can write one.
    """
    own, others = find_runs([asked.outputs]), find_runs(asked.results)
    own.warn()
    others.warn()
    baselines = [run for run in others.runs if run.experiment != f"{TABLE}/{ENTRY}"]
    return [*groups_of(read_table(TABLE), [*own.runs, *baselines], PAPER)[PAPER]]


def _lacking(
    asked: Entry, own: Sequence[str], identity: str, seeds: Sequence[int]
) -> Iterator[list[str]]:
    """Yield what to type after gcbench -m for the runs that baselines and the entry lack."""
    wanted = [
        ([experiment_override(row.spec.experiment), *row.all_overrides], row.runs)
        for row in _rows(asked)
        if row.spec.experiment
    ]
    mine = [run for run in find_runs([asked.outputs]).runs if run.result.identity == identity]
    for command, runs in [*wanted, ([*own], mine)]:
        if lacking := lacking_seeds(runs, seeds):
            yield [*command, f"seed={_listed(lacking)}"]


def _run(command: Sequence[str]) -> None:
    """Run a command to its end, also after Ctrl-C, on which it writes a checkpoint."""
    with subprocess.Popen(command, env=environment_of_child()) as process:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))
