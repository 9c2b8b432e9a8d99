"""Measure step times of several methods and of PyTorch's DDP on a shaped link, in one run.

    scripts/netlab --hosts 2 --rate 1gbit -- scripts/turns steps model=resnet18 dataset=cifar10
    scripts/netlab --hosts 2 --rate 1gbit -- scripts/turns steps model=lstm dataset=wikitext2
    scripts/netlab --spare-core -- scripts/turns steps model=resnet18 dataset=cifar10 --overlap

With trainer.batch_size=16 the batch is as in the papers. Codecs are those of a default run;
trainer.codec_backend=eager selects others. The script writes
outputs/tables/links/<model>-<rate>-<hosts>.md, and its measurements to outputs/results/links/. With
--overlap it measures each method with exchanges after and during the backward pass, and the files
are named overlap-<model>-...; with --compress, gcbench.compress in a plain loop, and their names
begin with compress-.
`exchange` is the time of the collectives, hidden or not; `model` is the cost model's time for their
payload on that link.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.runner.bench.timing import ratio_in_turn, turns
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.network import Link, Network
from gcbench.runner.predict.devices import read_link
from gcbench.runner.records.environment import describe_environment
from lib.turns import (
    BASELINE,
    FIXED,
    TORCH,
    keep_measured,
    of_workers,
    refuse_alone,
    refuse_fixed,
    step_times,
    use_codecs,
)

UNDER, FP16_HOOK = ", overlap", "torch DDP, fp16_compress_hook"
OVERLAP = ["trainer.overlap=true", "trainer.bucket_mib=8"]
METHODS = {
    "dense fp32": ["compressor=none"],
    "dense fp32, overlap": ["compressor=none", *OVERLAP],
    "dense fp16": ["compressor=fp16"],
    "QSGD 4 bits, gather": ["compressor=qsgd", "bits=4", "bucket_size=512"],
    "QSGD 4 bits, scatter": ["compressor=qsgd", "bits=4", "bucket_size=512", "exchange=scatter"],
    "QSGD 4 bits, scatter, coded again": [
        "compressor=qsgd",
        "bits=4",
        "bucket_size=512",
        "exchange=scatter_coded",
    ],
    "top-k 1.6 %": ["compressor=top_k"],
    "scaled sign": ["compressor=scaled_sign"],
    "PowerSGD rank 2": ["compressor=powersgd", "rank=2"],
    "PowerSGD rank 2, overlap": ["compressor=powersgd", "rank=2", *OVERLAP],
    "PowerSGD rank 2, double buffering": [
        "compressor=powersgd",
        "rank=2",
        "trainer.double_buffering=true",
    ],
    "dense fp32, double buffering": ["compressor=none", "trainer.double_buffering=true"],
}
OVERLAPPED = (  # with --overlap: each exchanges after the backward pass, and during it
    "dense fp32",
    "dense fp16",
    "QSGD 4 bits, gather",
    "top-k 1.6 %",
    "scaled sign",
    "PowerSGD rank 2",
)
COMPRESSED: dict[str, dict[str, Any]] = {  # with --compress: by gcbench.compress, in a plain loop
    "none": {},
    "fp16": {},
    "qsgd": {"bits": 4},
    "scaled_sign": {},
    "powersgd": {"rank": 2},
    "top_k": {},
}
CODECS = {
    # Before codecs were native.
    "auto": "Codecs are compiled; sums are native C++ where there is some, and eager elsewhere.",
    "native": "Codecs are native C++.",
    "eager": "Codecs are eager.",
}
OVERLAP_HEADINGS = ["method", "step", "exchange", "coding", "overlapped", "ratio"]
HEADINGS = ["method", "step", "slowdown", "exchange", "model", "coding", "MB sent"]
COMPRESS_HEADINGS = ["method", "step", "slowdown", "MB sent"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/turns steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=turns, default=10, help="turns per method, with two timed steps each"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--overlap", action="store_true", help="exchanges after the backward pass, and during it"
    )
    kinds.add_argument(
        "--compress", action="store_true", help="gcbench.compress beside PyTorch's hooks"
    )
    parser.add_argument("overrides", nargs="+", help="as for gcbench")
    typed = parser.parse_intermixed_args()
    refuse_alone("steps")
    if not any(override.startswith("model=") for override in typed.overrides):
        parser.error(f"{' '.join(typed.overrides)}: no model; type model=resnet18, say, before it")
    fixed = [*of_workers(int(os.environ["WORLD_SIZE"])), *FIXED]
    refuse_fixed(typed.overrides, fixed, "all methods take turns here")
    config, _ = resolve_overrides(typed.overrides)
    backend = use_codecs(config.trainer.codec_backend)
    methods, hooks = METHODS, TORCH
    if typed.compress:
        methods, hooks = {}, {**TORCH, FP16_HOOK: {"hook": fp16_hook}, **compressed()}
    elif typed.overlap:
        hooks = {}
        after = {name: METHODS[name] for name in OVERLAPPED}
        methods = after | {
            name + UNDER: [*overrides, *OVERLAP] for name, overrides in after.items()
        }
    rows, message_seconds = step_times(typed.overrides, methods, typed.rounds, torch_hooks=hooks)
    if os.environ["RANK"] != "0":
        return
    rate, hosts = os.environ.get("GCBENCH_LINK", "open"), int(os.environ["WORLD_SIZE"])
    for row in rows:
        row["model_seconds"] = predicted(row, rate, hosts, message_seconds)
    spare_core = bool(os.environ.get("GCBENCH_SPARE_CORE"))
    facts = {
        "words": typed.overrides,
        "rounds": typed.rounds,
        "codec_backend": backend,
        "overlap": typed.overlap,
        "compress": typed.compress,
        "link": rate,
        "hosts": hosts,
        "spare_core": spare_core,
        "message_seconds": message_seconds,
        **describe_environment().model_dump(),
        "rows": rows,
    }
    what = "overlap-" if typed.overlap else "compress-" if typed.compress else ""
    where = f"{rate}-{hosts}{'-spare' if spare_core else ''}"
    keep_measured(f"{what}{model_of(typed.overrides)}-{where}", facts, page(facts))


def fp16_hook(ddp: DistributedDataParallel) -> None:
    ddp.register_comm_hook(None, fp16_compress_hook)


def compressed() -> dict[str, dict[str, Any]]:
    """Return contenders whose gradients are exchanged by gcbench.compress."""
    return {
        " ".join([f"compress {name}", *(f"{key}={value}" for key, value in typed.items())]): {
            "hook": partial(gcbench.compress, compressor=name, **typed)
        }
        for name, knobs in COMPRESSED.items()
        for typed in (knobs, {**knobs, "overlap": True})
    }


def predicted(row: dict[str, Any], rate: str, hosts: int, message_seconds: float) -> float | None:
    """Return the seconds of a row's collectives by the cost model; None without a rate or exchange.

    They follow from the link's rate and its measured seconds per message.
    """
    if rate == "open" or not row.get("collectives"):
        return None
    between = Link(read_link("network", rate).bits_per_second, message_seconds)
    network = Network(hosts, 1, between, between)
    return sum(
        messages * network.seconds(kind, bits) for kind, messages, bits in row["collectives"]
    )


def model_of(overrides: list[str]) -> str:
    return next(override.split("=")[1] for override in overrides if override.startswith("model="))


def page(facts: dict[str, Any]) -> str:
    rate, hosts, rounds, overrides = (facts[key] for key in ("link", "hosts", "rounds", "words"))
    overlap, compress, spare_core = (
        facts.get(key, False) for key in ("overlap", "compress", "spare_core")
    )
    model = model_of(overrides)
    what = "Steps with and without overlap" if overlap else "Steps"
    what += " of own loops" if compress else ""
    spare = " with a spare core" if spare_core else ""
    make = overlap_table if overlap else compress_table if compress else steps_table
    table = make(facts["rows"])
    command = (
        f"scripts/netlab --hosts {hosts} --rate {rate}{' --spare-core' if spare_core else ''} -- "
        f"scripts/turns steps {' '.join(overrides)}{' --overlap' * overlap}"
        f"{' --compress' * compress} --rounds {rounds}"
    )
    latency = f"A message takes {1e6 * facts['message_seconds']:.0f} us, measured in the same run."
    return (
        f"# {what} of {model} on {hosts} hosts{spare} joined at {rate}\n\n{markdown(table)}\n\n"
        f"Times in ms, medians of {2 * rounds} steps in turn, in one run. {latency} "
        f"{CODECS[facts['codec_backend']]} `{command}`\n"
    )


def steps_table(rows: list[dict[str, Any]]) -> TextTable:
    return TextTable(HEADINGS, [cells(row) for row in rows])


def compress_table(rows: list[dict[str, Any]]) -> TextTable:
    return TextTable(COMPRESS_HEADINGS, [[*row[:3], row[-1]] for row in map(cells, rows)])


def overlap_table(rows: list[dict[str, Any]]) -> TextTable:
    """Return the methods with the ratios of overlapped steps to other steps of the same turns."""
    by_name = {row["method"]: row for row in rows}
    return TextTable(
        OVERLAP_HEADINGS,
        [
            [
                name,
                f"{1e3 * after['step_seconds']:.0f}",
                f"{after['exchange_seconds'] / after['step_seconds']:.0%}",
                f"{after['coding_seconds'] / after['step_seconds']:.0%}",
                f"{1e3 * under['step_seconds']:.0f}",
                f"{ratio_in_turn(under['all_step_seconds'], after['all_step_seconds']):.2f}",
            ]
            for name in OVERLAPPED
            for after, under in [(by_name[name], by_name[name + UNDER])]
        ],
    )


def cells(row: dict[str, Any]) -> list[str]:
    exchange, model = (row.get(key) or 0.0 for key in ("exchange_seconds", "model_seconds"))
    exchanges, sends = exchange > 0, "sent_bits" in row and row["method"] != BASELINE
    return [
        row["method"],
        f"{1e3 * row['step_seconds']:.0f}",
        f"{row['of_no_exchange']:.2f}",
        f"{1e3 * exchange:.1f}" if exchanges else "",
        f"{1e3 * model:.1f}" if exchanges and model else "",
        f"{1e3 * row['coding_seconds']:.1f}" if exchanges else "",
        f"{row['sent_bits'] / 8e6:.2f}" if sends else "",
    ]
