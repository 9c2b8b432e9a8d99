"""The tables of `gcbench predict`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gcbench.core.errors import ConfigError
from gcbench.runner.console import TextTable
from gcbench.runner.predict.arguments import (
    Compare,
    Devices,
    Links,
    Measure,
    OnClusters,
    Pays,
    Predict,
    Steps,
    ThisMachine,
)
from gcbench.runner.predict.devices import (
    DEVICE_FILES,
    device_names,
    format_megabytes,
    format_rate,
    format_seconds,
    read_device,
    read_presets,
)
from gcbench.runner.predict.measure import MADE, measure_device, write_device
from gcbench.runner.predict.model import (
    FASTEST,
    SLOWEST,
    Cluster,
    Method,
    MethodVerdict,
    RateRange,
    find_verdicts,
    predict,
)
from gcbench.runner.predict.recorded import compare
from gcbench.runner.predict.scenario import (
    ASSUMED_SAMPLES,
    Scenario,
    build_scenario,
    notes_of,
    predictions,
)
from gcbench.runner.predict.sigma import KeptRho, read_rho
from gcbench.runner.predict.target import rank_by_target

log = logging.getLogger("gcbench")


def answer(arguments: Predict) -> TextTable:
    """Return the table that was asked for; raise ConfigError where nothing can be predicted."""
    match arguments:
        case Links():
            return _list_links()
        case Devices():
            return _list_devices()
        case Measure():
            return _measure(arguments)
        case ThisMachine():
            return _machine(arguments)
        case Compare():
            return _compare(arguments)
    assert isinstance(arguments, Steps | Pays)
    try:
        return (
            _rank_methods(arguments) if isinstance(arguments, Pays) else _predict_steps(arguments)
        )
    except ValueError as error:  # a method that cannot run on such a cluster
        raise ConfigError(str(error)) from error


def _predict_steps(arguments: Steps) -> TextTable:
    scenario = build_scenario(arguments)
    rows = [
        [
            p.method,
            network,
            f"{p.workers:,}",
            format_seconds(p.step_seconds),
            f"{p.samples_per_second:,.0f}",
            format_seconds(p.epoch_seconds(scenario.samples)),
            format_seconds(p.codec_seconds),
            format_seconds(p.exchange_seconds),
            format_seconds(p.exposed_seconds),
            format_megabytes(p.sent_bits),
            format_megabytes(p.received_bits),
            f"{p.of_bound:.2f} x",
        ]
        for network, p in predictions(arguments, scenario)
    ]
    headings = [
        "method",
        "network",
        "workers",
        "step",
        "samples/s",
        "epoch",
        "codec",
        "exchange",
        "exposed",
        "MB sent",
        "MB received",
        "x bound",
    ]
    return TextTable(
        headings,
        rows,
        left=(0, 1),
        title=_title(arguments, scenario),
        notes=[*notes_of(arguments, scenario), *_assumed_epoch(arguments)],
    )


def _assumed_epoch(arguments: Steps) -> list[str]:
    if not arguments.shapes or arguments.samples is not None:
        return []
    return [f"An epoch is assumed to have {ASSUMED_SAMPLES:,} samples; type samples=N."]


def _title(arguments: OnClusters, scenario: Scenario) -> str:
    parts = [scenario.title, *scenario.clusters]
    if arguments.workers_per_node > 1:
        parts.append(f"{arguments.workers_per_node} a node on {arguments.inside}")
    if arguments.overlap:
        parts.append("with overlap")
    return ", ".join(parts)


def _rank_methods(arguments: Pays) -> TextTable:
    workers = arguments.workers
    if 1 in workers:
        several = ",".join(str(number) for number in workers if number > 1) or "2,4,8,16"
        raise ConfigError(
            f"workers={','.join(map(str, workers))}: one worker exchanges nothing; "
            f"type workers={several}"
        )
    scenario = build_scenario(arguments)
    if arguments.target is not None:
        title, notes = _title(arguments, scenario), notes_of(arguments, scenario)
        return rank_by_target(arguments, scenario, title, notes)
    clusters, compute, dense = scenario.clusters, scenario.compute, scenario.dense
    others = [m for m in scenario.methods if m is not dense]
    (bound,) = find_verdicts([dense], dense, workers, clusters, compute, arguments.overlap)
    verdicts = find_verdicts(others, dense, workers, clusters, compute, arguments.overlap)
    if arguments.picture:
        from gcbench.runner.predict.picture import draw

        network, cluster = next(iter(clusters.items()))
        title = _title(arguments, scenario._replace(clusters={network: cluster}))
        steps = bound.predictions[network]
        files = draw(verdicts, steps, network, cluster, Path(arguments.picture), title)
        log.info("drawn: %s", ", ".join(map(str, files)))
    kept = read_rho(arguments.results)
    headings = ["method"]
    columns = [["none: step", "none: samples/s", *(v.method.title for v in verdicts)]]
    for i, number in enumerate(workers):
        for network, cluster in clusters.items():
            step = bound.predictions[network][i]
            headings.append(f"W={number:,} {network}")
            columns.append(
                [format_seconds(step.step_seconds), f"{step.samples_per_second:,.0f}"]
                + [f"{v.speedups[network][i]:.2f} x" for v in verdicts]
            )
            if scenario.half:
                headings.append(f"W={number:,} {network}: sigma / rho")
                said = (
                    _answer(v.method, number, cluster, scenario, kept, arguments.length)
                    for v in verdicts
                )
                columns.append(["", "", *said])
        headings.append(f"W={number:,} pays")
        columns.append(["", "", *(_paying(v.paying[i]) for v in verdicts)])
    return TextTable(
        headings,
        list(zip(*columns, strict=True)),
        groups=[True, True, *(False for _ in verdicts)],
        title=_title(arguments, scenario),
        notes=[
            "Times faster than none, which exchanges whole gradients, by the number of workers W "
            "and network; the fastest on average first. It pays at the rates between nodes in the "
            f"last column of each W{_latency_of(scenario)}.",
            *(_fastest([bound, *verdicts], network, workers) for network in clusters),
            *_about_answer(arguments, scenario, kept),
            "Speed only: how good the model gets is not predicted, neither with fewer bits nor "
            "with every=H. Train the candidates, or see what gcbench report has of them.",
            *notes_of(arguments, scenario),
        ],
    )


def _answer(
    method: Method,
    workers: int,
    cluster: Cluster,
    scenario: Scenario,
    kept: KeptRho | None,
    length: float,
) -> str:
    """Return sigma, rho and their quotient with its interval; a dash where rho is not covered."""
    assert scenario.half
    ours, theirs = (
        predict(m, workers, cluster, scenario.compute, m.in_buckets and m.every == 1).step_seconds
        for m in (method, scenario.half)
    )
    sigma = theirs / ours
    rho = kept.of(method, workers, length) if kept else None
    if rho is None or rho.value is None:
        return f"{sigma:.2f} / -"
    low, high = (f"{sigma / one:.2f}" if 0 < one < math.inf else "?" for one in (rho.high, rho.low))
    return f"{sigma:.2f} / {rho.value:.2f} = {sigma / rho.value:.2f} [{low}, {high}]"


def _about_answer(arguments: Pays, scenario: Scenario, kept: KeptRho | None) -> list[str]:
    if scenario.half is None:
        return []
    whole = [
        f"{step.exchange_seconds / step.compute_seconds:.3g} (W={step.workers:,} {network})"
        for w in arguments.workers
        for network, cluster in scenario.clusters.items()
        for step in [predict(scenario.half, w, cluster, scenario.compute)]
    ]
    about = (
        "sigma: times shorter than a step of bf16 with overlap, where the exchange of whole "
        f"gradients in bf16 takes c times the computation, c = {', '.join(whole)}. rho: times the "
        "tokens that a method needs for the loss of dense training"
    )
    if kept is None:
        return [
            f"{about}; there is no figures/modern/ladder/map.json in {', '.join(arguments.results)}"
            ": type results=path/to/gcbench/outputs."
        ]
    return [
        f"{about} after T = {arguments.length:g} times 20 a parameter, of the kept method that "
        f"sends about as many bits; known at most for {kept.covers}, and - where no run covers it."
    ]


def _latency_of(scenario: Scenario) -> str:
    """Return words that name the network whose latency the ranges of rates use.

    They are empty if there is only one network.
    """
    if len(scenario.clusters) == 1:
        return ""
    return f", with the latency of {next(iter(scenario.clusters))}"


def _fastest(verdicts: Sequence[MethodVerdict], network: str, workers: Sequence[int]) -> str:
    parts = []
    for i, number in enumerate(workers):
        best = max(verdicts, key=lambda v: v.speedups[network][i])
        step = best.predictions[network][i]
        parts.append(
            f"W={number:,} {best.method.title} ({format_seconds(step.step_seconds)}, "
            f"{step.samples_per_second:,.0f} samples/s)"
        )
    return f"Fastest on {network}: {', '.join(parts)}."


def _paying(ranges: Sequence[RateRange]) -> str:
    return ", ".join(map(_range, ranges)) or "never"


def _range(rates: RateRange) -> str:
    low, high = format_rate(rates.low), format_rate(rates.high)
    if rates.low == SLOWEST:
        return "always" if rates.high == FASTEST else f"< {high}"
    return f"> {low}" if rates.high == FASTEST else f"{low} to {high}"


def _measure(arguments: Measure) -> TextTable:
    if not arguments.paths or arguments.device is None:
        raise ConfigError(
            "measure: type folders with bench.json and result.json in them, and device=FILE.yaml"
        )
    if not arguments.device.endswith(DEVICE_FILES):
        raise ConfigError(
            f"device={arguments.device}: it is read from a yaml file; type "
            f"device={arguments.device}.yaml"
        )
    file = Path(arguments.device)
    if file.exists():
        raise ConfigError(
            f"device={file}: there is such a file, which may have been edited; type another name, "
            "or delete it first"
        )
    node = measure_device(arguments.paths, arguments.title or file.stem)
    write_device(node, file)
    return _list_sizes(node, file)


def _machine(arguments: ThisMachine) -> TextTable:
    file = Path(arguments.device or "")
    if file.suffix not in DEVICE_FILES:
        raise ConfigError(
            f"device={arguments.device}: it is written to a yaml file; type device=mine.yaml"
        )
    made = f"{MADE}machine."
    if file.exists() and not file.read_text(encoding="utf-8").startswith(made):
        raise ConfigError(
            f"device={file}: this command has not made the file that is there; type another name, "
            "or delete it first"
        )
    from gcbench.runner.predict.machine import measure_machine  # imports benchmarks

    node = measure_machine(arguments)
    write_device(node, file, "machine")
    return _list_sizes(node, file)


def _list_sizes(node: Mapping[str, Any], file: Path) -> TextTable:
    rows = [
        ["codec", name, _sizes(entry["aggregate_seconds"])]
        for name, entry in node["codecs"].items()
    ]
    rows += [["model", name, _sizes(entry["seconds"])] for name, entry in node["models"].items()]
    headings = ["part", "name", "sizes (values or batches)"]
    title = f"{file}: {node['title']}"
    return TextTable(headings, rows, left=range(3), title=title)


def _sizes(seconds_by_size: dict[int, Any]) -> str:
    return ", ".join(f"{size:,}" for size in seconds_by_size)


def _compare(arguments: Compare) -> TextTable:
    if not arguments.paths:
        raise ConfigError(
            "compare: type run directories, as in gcbench predict compare outputs/RUN network=1gbit"
        )
    network = arguments.network
    if network and "," in network:
        raise ConfigError(f"network={network}: runs are compared on one; type one")
    comparisons = [compare(path, network, arguments.latency) for path in arguments.paths]
    rows = [
        [
            c.title,
            str(c.workers),
            format_seconds(c.exchange_seconds),
            format_seconds(c.measured_exchange_seconds),
            f"{c.ratio:.3f}",
        ]
        for c in comparisons
    ]
    headings = ["run", "workers", "predicted", "measured", "measured / predicted"]
    return TextTable(headings, rows, title="exchange of a step")


def _list_links() -> TextTable:
    rows = [
        [
            name,
            format_rate(float(link["bits_per_second"])),
            format_seconds(float(link["latency_seconds"])),
            link["source"],
        ]
        for name, link in read_presets().items()
    ]
    headings = ["link", "payload rate", "latency", "source"]
    return TextTable(headings, rows, left=(0, 3), title="network= and inside=")


def _list_devices() -> TextTable:
    rows = [[d.name, d.title, ", ".join(d.models)] for d in map(read_device, device_names())]
    return TextTable(["device", "what it is", "models"], rows, left=range(3), title="device=")
