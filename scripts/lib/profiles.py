"""Compare steps that gcbench.profile predicts with measured ones, on ten shaped links.

    scripts/turns profiles      # as root; two hosts want two free cores
    scripts/turns profiles --links 2:30mbit:conv,4:200mbit:mlp --rounds 5

On each link a loop of DistributedDataParallel is profiled for STEPS steps, as a user would do it.
Then five methods of gcbench.compress take turns in the same loop. Nothing else is an input of the
prediction, and no other measurement corrects it. The script writes
outputs/tables/links/profiles.md and outputs/results/links/profiles.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import gcbench
from gcbench.core.meeting import join
from gcbench.runner.bench.network import TIMEOUT
from gcbench.runner.bench.timing import Row, turns
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.profile.table import outcomes_of
from gcbench.runner.records.environment import describe_environment
from lib.contenders import TorchSteps
from lib.predictions import WITHIN, on_hosts, run_on_hosts
from lib.turns import keep_measured

MODELS = {
    "mlp": "model=mlp model.widths=[768,768,768] dataset=digits trainer.batch_size=256",
    "conv": "model=resnet20 dataset=cifar10 trainer.batch_size=32",
    "gpt": "model=gpt_bytes dataset=wikitext2_bytes trainer.batch_size=8",
}
METHODS = (
    "none",
    "qsgd",
    "scaled_sign error_feedback=true",
    "powersgd rank=2",
    "top_k fraction=0.015625 index=auto",
)
LINKS = (  # hosts, rate, model
    "2:30mbit:conv,2:50mbit:mlp,2:200mbit:gpt,2:300mbit:conv,2:1gbit:gpt,2:5gbit:mlp,"
    "4:50mbit:conv,4:200mbit:mlp,4:300mbit:gpt,4:1gbit:mlp"
)
STEPS = 12  # that are profiled
HEADINGS = ["link", "model", "method", "predicted", "measured", "ratio"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/turns profiles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--links", default=LINKS, help="HOSTS:RATE:MODEL, separated by commas")
    parser.add_argument("--rounds", type=turns, default=5, help="turns, with two timed steps each")
    parser.add_argument("--model", help=argparse.SUPPRESS)  # on a host: of MODELS
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)  # on a host: the file to write
    typed = parser.parse_args()
    if typed.to:
        measure_here(typed.model, typed.rounds, typed.to)
        return
    links = [link.split(":") for link in typed.links.split(",")]
    for hosts, rate, model in links:
        if model not in MODELS:
            parser.error(f"--links {hosts}:{rate}:{model}: type one of {', '.join(MODELS)}")
        run_on_hosts(rate, hosts, ["true"])  # so that a wrong link is refused before measuring
    parts = []
    for hosts, rate, model in links:
        parts.append(on_hosts("profiles", rate, hosts, typed.rounds, "--model", model))
    name = "profiles" if typed.links == LINKS else f"profiles-{typed.links.replace(':', '_')}"
    asked = {"links": typed.links, "rounds": typed.rounds}
    facts = {**asked, **describe_environment().model_dump(), "parts": parts}
    keep_measured(name, facts, page(facts))


def measure_here(model: str, rounds: int, answer: Path) -> None:
    """Profile a loop and time the methods in it, as one of the hosts; the first writes `answer`."""
    keep_freed_memory()
    torch.set_num_threads(1)
    with join("gloo", timeout=TIMEOUT):
        workers = dist.get_world_size()
        words = [*MODELS[model].split(), f"trainer.workers={workers}", "logger=none"]
        config = resolve(compose_overrides(words))
        loop = TorchSteps(config, make_data(config))
        loop.step()
        with gcbench.profile(loop.forward, methods=METHODS) as profile:
            for _ in range(STEPS):
                loop.step()
        predicted = {
            one.method.title: one.step
            for one in outcomes_of(profile.job, ())
            if one.method.title in METHODS
        }
        measured = time_methods(loop, rounds)
    if os.environ["RANK"] == "0":
        rows = [
            {"method": method, "predicted": predicted[method], "measured": measured[method]}
            for method in METHODS
        ]
        facts = {"link": os.environ["GCBENCH_LINK"], "hosts": workers, "model": model}
        computing = {"compute_seconds": profile.job.compute_seconds, "values": profile.job.values}
        answer.write_text(json.dumps({**facts, **computing, "rows": rows}))


def time_methods(loop: TorchSteps, rounds: int) -> dict[str, float]:
    """Return the seconds of a step of each method, medians of two in each of so many turns."""
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(rounds):
        for method in METHODS:
            name, *knobs = method.split()
            handle = gcbench.compress(loop.forward, name, **dict(map(read, knobs)))
            loop.step()  # makes the method's state
            for _ in range(2):
                dist.barrier()
                began = time.perf_counter()
                loop.step()
                seconds = torch.tensor(time.perf_counter() - began)
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
                found[method].append(seconds.item())
            handle.remove()
    return {method: median(seconds) for method, seconds in found.items()}


def read(knob: str) -> tuple[str, object]:
    key, _, value = knob.partition("=")
    return key, value if key == "index" else json.loads(value)


def page(facts: Row) -> str:
    parts = facts["parts"]
    table = [
        [
            f"{part['hosts']} x {part['link']}",
            part["model"],
            row["method"],
            *(f"{1e3 * row[key]:.1f}" for key in ("predicted", "measured")),
            f"{row['measured'] / row['predicted']:.2f}",
        ]
        for part in parts
        for row in part["rows"]
    ]
    by_hosts = {hosts: [p for p in parts if p["hosts"] == hosts] for hosts in (2, 4)}
    near = " and ".join(
        f"{sum(map(is_near, rows))} of {len(rows)} with {hosts} hosts"
        for hosts, some in by_hosts.items()
        if (rows := [row for part in some for row in part["rows"]])
    )
    right = sum(map(is_right, parts))
    typed = "" if facts["links"] == LINKS else f" --links {facts['links']}"
    return (
        "# Steps that gcbench.profile predicts, and measured ones\n\n"
        f"{markdown(TextTable(HEADINGS, table, left=(0, 1, 2)))}\n\n"
        f"Milliseconds of a step; measured: medians of {2 * facts['rounds']} in turn. Within "
        f"{100 * WITHIN:.0f} % are {near}; four hosts share two cores. The method with the "
        f"shortest predicted step takes at most {100 * TIE:.0f} % longer than the fastest on "
        f"{right} of {len(parts)} links. `scripts/turns profiles{typed} --rounds "
        f"{facts['rounds']}`\n"
    )


TIE = 0.05  # two methods whose steps differ by less are equally good


def is_right(part: Row) -> bool:
    """Return whether the method with the shortest predicted step is, or ties with, the fastest."""
    chosen = min(part["rows"], key=lambda row: row["predicted"])
    fastest = min(row["measured"] for row in part["rows"])
    return bool(chosen["measured"] <= (1 + TIE) * fastest)


def is_near(row: Row) -> bool:
    return bool(abs(row["measured"] / row["predicted"] - 1) <= WITHIN)
