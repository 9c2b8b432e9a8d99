"""Measure steps on ten links, numbers of workers and batches that the map of modern/reach lacks.

    scripts/turns reach                 # as root: what is not measured yet, some two minutes each
    scripts/turns reach --only 2,7 --rounds 2 --anew

For each, the three or four methods that should reach the map's target first take turns on hosts
that scripts/netlab joins, each with the exchange that is predicted to be best. Predicted is the
step: computation + coding + exchange. Measured in the same run are only the computation, a step
without exchange, and the seconds of a message. Codec
seconds are those of conf/devices/cpu.yaml, times the hosts that share a core. Whole gradients with
overlap do not take part, as a host here has no core to spare. The script writes
outputs/results/links/reach.json and outputs/tables/links/reach.md after every configuration, and
goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gcbench.papers.reach.reach import Contender, Race, race_of
from gcbench.papers.tables.build import groups_of
from gcbench.papers.tables.tables import read_table
from gcbench.runner.bench.timing import turns
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.network import Link
from gcbench.runner.predict.devices import read_link
from gcbench.runner.predict.model import Cluster, CodecSeconds, Compute, Method, predict
from gcbench.runner.records.environment import describe_environment, now
from gcbench.runner.records.store import find_runs
from lib.turns import BASELINE, keep_measured, step_times, use_codecs

# Links, hosts and windows of a worker's batch: none as in the map, whose workers share 64 windows
# and compute 70 ms.
CONFIGURATIONS = [
    ("10mbit", 2, 8),
    ("10mbit", 2, 32),
    ("30mbit", 2, 16),
    ("30mbit", 4, 4),
    ("100mbit", 2, 4),
    ("100mbit", 4, 8),
    ("300mbit", 2, 8),
    ("300mbit", 2, 32),
    ("300mbit", 4, 16),
    ("1gbit", 2, 4),
]
TABLE, BUDGET, NAME = "modern/reach", "cpu_long", "reach"
MODEL = "model=gpt_tiny dataset=wikitext2 dataset.bptt=64 dataset.vocabulary=2000".split()
KNOBS = {"powersgd": ["min_ratio=0"]}  # of rows, where they are not those of the method's file
AVERAGED = "clip_norm=1 outer_lr=1 outer_momentum=0 outer_nesterov=false".split()
AVERAGED = [f"estimator.{key}" for key in AVERAGED]  # as in the rows of local steps
WINDOWS, BEST, WITHIN = 16, 4, 0.15  # windows that the table's computation is for
HEADINGS = ["setting", "method", "predicted", "measured", "ratio"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/turns reach",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=turns, default=10, help="turns, with two timed steps each")
    parser.add_argument("--only", help="numbers of configurations from 1 on, separated by commas")
    parser.add_argument("--anew", action="store_true", help="measure again what was measured")
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)  # on a host: what to measure
    typed = parser.parse_args()
    if typed.plan:
        measure_here(typed.plan)
        return
    table = read_table(TABLE)
    race = race_of(table, groups_of(table, find_runs(["outputs"]).runs, BUDGET)[BUDGET])
    if race is None:
        sys.exit(f"scripts/turns reach: outputs/ has no runs of {TABLE} at budget={BUDGET}")
    file = Path(f"outputs/results/links/{NAME}.json")
    parts: list[dict[str, Any]] = json.loads(file.read_text())["parts"] if file.exists() else []
    chosen = [int(n) for n in typed.only.split(",")] if typed.only else range(1, 11)
    for number in chosen:
        done = next((part for part in parts if part["number"] == number), None)
        if done and not typed.anew:
            continue
        part = measure(race, number, typed.rounds)
        parts = sorted(
            [*(other for other in parts if other is not done), part], key=lambda p: p["number"]
        )
        facts = {"words": MODEL, "parts": parts}
        keep_measured(NAME, facts, page(facts))


def measure(race: Race, number: int, rounds: int) -> dict[str, Any]:
    """Return the measured and the predicted steps of a configuration."""
    rate, hosts, windows = CONFIGURATIONS[number - 1]
    (target,) = race.targets
    guess = race.settings.compute_seconds * windows / WINDOWS
    near = replace(race, settings=replace(race.settings, compute_seconds=guess))
    link = read_link("network", rate)
    times = {
        one.label: fmean(one.steps[target]) * near.step(one, hosts, link)[1].step_seconds
        for one in race.contenders
        if one.steps[target]
    }
    best = sorted(times, key=times.__getitem__)[:BEST]
    contenders = [one for one in race.contenders if one.label in best]
    forms = {one.label: near.step(one, hosts, link)[0] for one in contenders}
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(
            json.dumps(
                {
                    "rounds": rounds,
                    "overrides": [*MODEL, f"trainer.batch_size={windows}"],
                    "methods": {one.label: overrides(one, forms[one.label]) for one in contenders},
                }
            )
        )
        netlab = [str(Path(__file__).parents[1] / "netlab"), "--hosts", str(hosts), "--rate", rate]
        here = [sys.executable, sys.argv[0], "reach", "--plan", str(plan)]
        if code := subprocess.run([*netlab, "--", *here]).returncode:
            sys.exit(code)
        measured = json.loads(plan.read_text())
    steps = {row["method"]: row["step_seconds"] for row in measured["rows"]}
    compute = steps[BASELINE]
    rows = []
    for one in contenders:
        between = Link(link.bits_per_second, measured["message_seconds"])
        method = sharing(one.forms[forms[one.label]], hosts)
        cluster, whole = Cluster(between, between), Compute(compute, 0.0, windows)
        rows.append(
            {
                "method": one.label,
                "exchange": forms[one.label],
                "step_seconds": predict(method, hosts, cluster, whole).step_seconds,
                "measured_step_seconds": steps[one.label],
            }
        )
    return {
        "number": number,
        "link": rate,
        "hosts": hosts,
        "windows": windows,
        "rounds": rounds,
        "compute_seconds": compute,
        "message_seconds": measured["message_seconds"],
        **describe_environment().model_dump(),
        "finished": now(),
        "rows": rows,
    }


def overrides(one: Contender, exchange: str) -> list[str]:
    """Return the overrides of a row's method with an exchange."""
    every = one.own.every
    local = ["estimator=local_steps", f"estimator.every={every}", *AVERAGED]
    return [
        f"compressor={one.own.family}",
        *KNOBS.get(one.own.family, []),
        *([f"exchange={exchange}"] if exchange else []),
        *(local if every > 1 else ["clip_norm=1"]),
    ]


def sharing(method: Method, hosts: int) -> Method:
    """Return a method whose codec takes longer if hosts share cores."""
    times = max(1.0, hosts / len(os.sched_getaffinity(0)))
    codec = CodecSeconds(*(times * seconds for seconds in method.codec))
    return replace(method, codec=codec)


def measure_here(plan: Path) -> None:
    """Measure as one of the hosts; the first one writes the answer over the plan."""
    asked = json.loads(plan.read_text())
    use_codecs()
    rows, seconds = step_times(
        asked["overrides"], asked["methods"], asked["rounds"], torch_hooks={}
    )
    if os.environ["RANK"] == "0":
        plan.write_text(json.dumps({"rows": rows, "message_seconds": seconds}))


def page(facts: dict[str, Any]) -> str:
    """Return the page of what was measured so far."""
    rows, ratios = [], []
    keys = "step_seconds", "measured_step_seconds"
    for part in facts["parts"]:
        for row in part["rows"]:
            ratios.append(row[keys[1]] / row[keys[0]])
            rows.append(
                [f"{part['link']}, {part['hosts']}x{part['windows']}"]
                + [f"{row['method'].partition(', ')[0]} {row['exchange']}".rstrip()]
                + [f"{1e3 * row[key]:.1f}" for key in keys]
                + [f"{ratios[-1]:.2f}"]
            )
    table = markdown(TextTable(HEADINGS, rows, left=(0, 1)))
    close = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    return (
        f"# Steps of the methods on the map: predicted, and measured\n\n{table}\n\n"
        "A setting is the link, and hosts x windows of a worker's batch. In it, a step's "
        f"milliseconds. {close} of {len(ratios)} steps are within {100 * WITHIN:.0f} % of the "
        "prediction, in which a step without exchange and a message's latency are measured, in the "
        "same run. `scripts/turns reach`\n"
    )
