"""Compare measured with predicted steps on shaped links, for one method of every family.

    scripts/turns predictions      # as root: 100mbit and 1gbit, 2 and 4 hosts
    scripts/turns predictions --rates 1gbit --hosts 2 --rounds 5

Methods take turns on hosts that scripts/netlab joins. The times of a host's own work are inputs of
the prediction, measured in the same turns: a step without a method (computation), and a step in
which every host codes its gradient and decodes as many messages as it would get (codec). All hosts
do this at once, so that both meet the same contention for cores. The rest is predicted: what is
sent, how long the link takes for it, and the sum with the inputs. The script writes
outputs/tables/links/predictions.md and outputs/results/links/predictions.json, for other rates or
hosts for example predictions-1gbit-2.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from gcbench.papers.studies.study import compressor, model_shapes
from gcbench.runner.bench.timing import Row, turns
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.network import Link
from gcbench.runner.predict.devices import read_link
from gcbench.runner.predict.model import Cluster, CodecSeconds, Compute, Method, predict
from gcbench.runner.predict.payload import Payload
from gcbench.runner.records.environment import describe_environment
from lib.turns import BASELINE, keep_measured, step_times, use_codecs

# 2.2 million values, and a batch that takes 0.07 s to compute, or twice that if two hosts share a
# core. Hosts that wait for their turn there lose some 20 ms per step, which is not predicted.
MODEL = ["model=mlp", "model.widths=[1024,1024,1024]", "dataset=digits", "trainer.batch_size=256"]
BATCH = 256
FAMILIES = {  # names in conf/compressor
    "dense": "none",
    "quantizer: qsgd": "qsgd",
    "sparsifier: top_k": "top_k",
    "sign: scaled_sign": "scaled_sign",
    "low rank: powersgd": "powersgd",
}
EVERY = 8
LOCAL = {"local steps: dense": "dense", "local steps: qsgd": "quantizer: qsgd"}  # H = EVERY
HEADINGS = [
    "hosts",
    "method",
    "computation",
    "codec",
    "exchange",
    "predicted",
    "measured",
    "ratio",
]
WITHIN = 0.15
RATES, HOSTS = "100mbit,1gbit", "2,4"  # of the page without rates in its name


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/turns predictions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", default=RATES, help="rates of links, separated by commas")
    parser.add_argument("--hosts", default=HOSTS, help="numbers of hosts, separated by commas")
    parser.add_argument("--rounds", type=turns, default=8, help="turns, with two timed steps each")
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)  # on a host: the file to write
    typed = parser.parse_args()
    if typed.to:
        measure_here(typed.rounds, typed.to)
        return
    if "open" in typed.rates.split(","):
        parser.error(f"--rates {typed.rates}: open has no rate to predict with; leave it out")
    links = [(rate, hosts) for hosts in typed.hosts.split(",") for rate in typed.rates.split(",")]
    for link in links:
        run_on_hosts(*link, ["true"])  # so that a wrong link is refused before any measurement
    parts = [on_hosts("predictions", *link, typed.rounds) for link in links]
    environment = describe_environment().model_dump()
    facts = {"words": MODEL, "rounds": typed.rounds, **environment, "parts": parts}
    keep_measured("-".join(["predictions", *chosen(parts)]), facts, page(facts))


def on_hosts(case: str, rate: str, hosts: str, rounds: int, *more: str) -> Row:
    """Return what `scripts/turns CASE MORE --to FILE` writes on hosts joined at a rate."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "rows.json"
        here = [
            sys.executable,
            sys.argv[0],
            case,
            *more,
            "--rounds",
            str(rounds),
            "--to",
            str(answer),
        ]
        run_on_hosts(rate, hosts, here)
        part: Row = json.loads(answer.read_text())
    return part


def run_on_hosts(rate: str, hosts: str, command: Sequence[str]) -> None:
    """Run a command on hosts joined at a rate; exit if scripts/netlab fails, which prints why."""
    netlab = [str(Path(__file__).parents[1] / "netlab"), "--hosts", hosts, "--rate", rate, "--"]
    if code := subprocess.run([*netlab, *command]).returncode:
        sys.exit(code)


def measure_here(rounds: int, answer: Path) -> None:
    """Measure as one of the hosts; the first host writes the file `answer`."""
    chosen = {name: [f"compressor={family}"] for name, family in FAMILIES.items()}
    local = {name: [*chosen[family], *local_steps(EVERY)] for name, family in LOCAL.items()}
    turns: dict[str, list[str]] = {}
    for name, overrides in chosen.items():
        turns |= {alone_of(name): overrides, name: overrides}
    alone = [alone_of(name) for name in FAMILIES]
    use_codecs()
    rows, message_seconds = step_times(MODEL, {**turns, **local}, rounds, alone, torch_hooks={})
    if os.environ["RANK"] != "0":
        return
    titles = {name: (name, 1) for name in FAMILIES}
    titles |= {name: (family, EVERY) for name, family in LOCAL.items()}
    answer.write_text(json.dumps(compare(rows, message_seconds, titles, payloads())))


def local_steps(every: int) -> list[str]:
    return ["estimator=local_steps", f"estimator.every={every}"]


def payloads() -> dict[str, Payload]:
    """Return what the method of each family sends."""
    shapes = model_shapes(*MODEL)
    return {name: Payload(compressor(family), shapes) for name, family in FAMILIES.items()}


def compare(
    rows: Sequence[Row],
    message_seconds: float,
    titles: Mapping[str, tuple[str, int]],
    sent: Mapping[str, Payload],
) -> Row:
    """Return measured beside predicted times of the methods `titles`, each a family at some H."""
    measured = {row["method"]: row for row in rows}
    rate, hosts = os.environ["GCBENCH_LINK"], int(os.environ["WORLD_SIZE"])
    between = Link(read_link("network", rate).bits_per_second, message_seconds)
    cluster = Cluster(between, between)
    compared = [
        compare_method(title, family, every, sent[family], cluster, hosts, measured)
        for title, (family, every) in titles.items()
    ]
    return {"link": rate, "hosts": hosts, "message_seconds": message_seconds, "rows": compared}


def compare_method(
    title: str,
    family: str,
    every: int,
    payload: Payload,
    cluster: Cluster,
    hosts: int,
    measured: Mapping[str, Row],
) -> Row:
    """Return the measured and predicted times of a method's steps, predicted turn by turn."""
    dense_bytes = 4 * sum(math.prod(shape) for shape in payload.shapes.values())
    steps = [measured[name]["all_step_seconds"] for name in (BASELINE, alone_of(family), title)]
    predicted = []
    for computed, coded, _ in zip(*steps, strict=True):
        codec = CodecSeconds(max(coded - computed, 0.0))  # for all messages
        method = Method(title, family, payload.at, codec, dense_bytes, every=every)
        predicted.append(predict(method, hosts, cluster, Compute(computed, computed, BATCH)))
    taken = steps[-1]
    return {
        "method": title,
        "compute_seconds": median(step.compute_seconds for step in predicted),
        "codec_seconds": median(step.codec_seconds for step in predicted),
        "exchange_seconds": predicted[0].exchange_seconds,
        "step_seconds": median(step.step_seconds for step in predicted),
        "measured_step_seconds": median(taken),
        "measured_exchange_seconds": measured[title]["exchange_seconds"],
        "ratio": median(t / step.step_seconds for t, step in zip(taken, predicted, strict=True)),
    }


def alone_of(name: str) -> str:
    return f"{name}, alone"


def chosen(parts: Sequence[Row]) -> list[str]:
    """Return the typed rates and hosts, or nothing if they are the defaults."""
    rates = ",".join(dict.fromkeys(part["link"] for part in parts))
    hosts = ",".join(dict.fromkeys(str(part["hosts"]) for part in parts))
    return [] if (rates, hosts) == (RATES, HOSTS) else [rates, hosts]


def page(facts: Row) -> str:
    parts, rounds = facts["parts"], facts["rounds"]
    latencies = ", ".join(
        f"{1e6 * part['message_seconds']:.0f} us on {part['hosts']} x {part['link']}"
        for part in parts
    )
    typed = "".join(map(" {} {}".format, ("--rates", "--hosts"), chosen(parts)))
    return (
        f"# Predicted and measured steps on shaped links\n\n{table(parts)}\n\n"
        f"Milliseconds of a step, medians of {2 * rounds} in turn; the ratio is the median of "
        "measured over predicted, turn by turn. Inputs are computation and codec, "
        f"measured in the same turns, and a message's seconds ({latencies}). Predicted are "
        f"the exchange and the step. {close(parts)} `scripts/turns predictions{typed} --rounds "
        f"{rounds}`\n"
    )


def close(parts: Sequence[Row]) -> str:
    """Return the sentence that says how many steps are close to their prediction."""
    ratios = [row["ratio"] for part in parts for row in part["rows"]]
    right = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    return f"{right} of {len(ratios)} steps are within {100 * WITHIN:.0f} %."


def table(parts: Sequence[Row]) -> str:
    """Return a table of all methods on all links."""
    rows = [
        [
            f"{part['hosts']} x {part['link']}",
            row["method"],
            *(
                f"{1e3 * row[f'{key}_seconds']:.1f}"
                for key in ("compute", "codec", "exchange", "step", "measured_step")
            ),
            f"{row['ratio']:.2f}",
        ]
        for part in parts
        for row in part["rows"]
    ]
    return markdown(TextTable(HEADINGS, rows, left=(0, 1)))
