"""Compare measured with predicted steps of DiLoCo, at four rates and four numbers of local steps.

    scripts/turns grid                  # as root: the rates that are not measured yet
    scripts/turns grid --rates 5gbit --rounds 4

The 16 points are those of Adnan082/diloco-measured (2026), whose own times on four GPUs `gcbench
study diloco_measured` compares. As in scripts/turns predictions, the inputs of the prediction are
measured in the same turns: a step without a method, and one with an outer step, but no exchange.
The script writes outputs/results/links/grid.json and outputs/tables/links/grid.md after every rate,
and goes on where it was stopped. All four take about six minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from gcbench.runner.bench.timing import Row, turns
from gcbench.runner.records.environment import describe_environment
from lib.predictions import (
    MODEL,
    alone_of,
    close,
    compare,
    local_steps,
    on_hosts,
    payloads,
    table,
)
from lib.turns import keep_measured, step_times, use_codecs

RATES = ["50mbit", "200mbit", "1gbit", "5gbit"]
EVERY = (1, 8, 32, 128)
HOSTS, DENSE = "2", "dense"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/turns grid",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", help="rates to measure again, separated by commas")
    parser.add_argument("--rounds", type=turns, default=2, help="turns, with two timed cycles each")
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)  # on a host: the file to write
    typed = parser.parse_args()
    if typed.to:
        measure_here(typed.rounds, typed.to)
        return
    again = typed.rates.split(",") if typed.rates else []
    if wrong := set(again) - {*RATES}:
        parser.error(f"--rates {','.join(wrong)}: type some of {','.join(RATES)}")
    file = Path("outputs/results/links/grid.json")
    kept = json.loads(file.read_text())["parts"] if file.exists() else []
    parts = {part["link"]: part for part in kept}
    for rate in again or [rate for rate in RATES if rate not in parts]:
        measured = on_hosts("grid", rate, HOSTS, typed.rounds)
        parts[rate] = measured | {"rounds": typed.rounds, **describe_environment().model_dump()}
        facts = {"words": MODEL, "parts": [parts[rate] for rate in RATES if rate in parts]}
        keep_measured("grid", facts, page(facts))


def measure_here(rounds: int, answer: Path) -> None:
    """Measure as one of the hosts; the first host writes the file `answer`."""
    dense = ["compressor=none"]
    titles = {f"H = {every}": (DENSE, every) for every in EVERY}
    methods = {alone_of(DENSE): [*dense, *local_steps(1)]}
    methods |= {title: [*dense, *local_steps(every)] for title, (_, every) in titles.items()}
    use_codecs()
    rows, seconds = step_times(MODEL, methods, rounds, [alone_of(DENSE)], torch_hooks={})
    if os.environ["RANK"] == "0":
        answer.write_text(json.dumps(compare(rows, seconds, titles, payloads())))


def page(facts: Row) -> str:
    parts = facts["parts"]
    return (
        f"# DiLoCo on shaped links: predicted and measured\n\n{table(parts)}\n\n"
        "Milliseconds of a step, in the mean over H steps with one exchange. `codec` is an H-th of "
        "the outer step. Times are medians of cycles in turn; the ratio is the median of measured "
        f"over predicted, turn by turn. {close(parts)} `scripts/turns grid`\n"
    )
