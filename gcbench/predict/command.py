"""The command `gcbench predict`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from gcbench.config import ConfigError, compose_words, conf_directory, resolve
from gcbench.console import TextTable, show
from gcbench.predict.units import rate, seconds
from gcbench.predict.words import Predict, read_predict

if TYPE_CHECKING:
    from gcbench.predict.devices import Device
    from gcbench.predict.model import Cluster, Compute, Method, Prediction
    from gcbench.predict.payload import Shapes
    from gcbench.predict.pays import Answer, Threshold

log = logging.getLogger("gcbench")


class Scenario(NamedTuple):
    """The subject of a prediction: methods on a model, a device and a cluster."""

    title: str
    methods: list[Method]
    dense: Method
    clusters: dict[str, Cluster]  # by network
    compute: Compute
    samples: int
    left_out: dict[str, str]  # of compressor=all: methods that cannot run there, and why
    untimed: list[str]  # of compressor=all, too: methods whose codec was never timed on that device
    guessed: list[str]  # methods with the seconds that the device has for any other


class Trained(NamedTuple):
    """A model, the samples of an epoch, and what a device takes to compute a step of it."""

    name: str
    shapes: Shapes
    samples: int
    compute: Compute


def predict_steps(typed: Sequence[str]) -> None:
    """Print what was asked for; ConfigError with one sentence for a slip."""
    words = read_predict(typed)
    show(_answer(words), words.format)


def _answer(words: Predict) -> TextTable:
    match words.command:
        case "links":
            return _list_links()
        case "devices":
            return _list_devices()
        case "measure":
            return _measure(words)
        case "compare":
            return _compare(words)
    try:
        return _rank_methods(words) if words.command == "pays" else _predict_steps(words)
    except ValueError as error:  # a method that cannot run on such a cluster
        raise ConfigError(str(error)) from error


def build_scenario(words: Predict) -> Scenario:
    from gcbench.predict.devices import read_device
    from gcbench.predict.links import read_link
    from gcbench.predict.model import Cluster
    from gcbench.predict.subject import methods

    device = read_device(words.device)
    inside = read_link("inside", words.inside)
    clusters = {
        name: Cluster(read_link("network", name, words.latency), inside, words.workers_per_node)
        for name in words.network
    }
    names = _choose_methods(words)
    untimed = [] if words.compressor != ("all",) else [n for n in names if not device.times(n)]
    trained = _find_trained(words, device)
    names = [name for name in names if name not in untimed]
    log.info("metering a step of %s with %d methods", trained.name, len(names))
    single, left_out = [], {}
    for choice in names:
        try:
            choices = methods(choice, words.others, trained.shapes, device, words.workers_per_node)
            for method in choices:
                for workers in words.workers:
                    method.messages(workers)
            single += choices
        except ValueError as error:
            if words.compressor != ("all",):
                raise
            left_out[choice] = str(error)
    every = [method.at_every(steps) for method in single for steps in words.every]
    dense = next((m for m in every if m.family == "none" and m.every == 1), None)
    return Scenario(
        f"{trained.name}, {device.title}, {trained.compute.batch_size} a worker",
        every,
        dense or methods("none", [], trained.shapes, device, 1)[0],
        clusters,
        trained.compute,
        trained.samples,
        left_out,
        untimed,
        sorted({m.family for m in single} - {*device.codecs, "none"}),
    )


def _choose_methods(words: Predict) -> Sequence[str]:
    """Return the choices of conf/compressor that were asked for."""
    from gcbench.predict.subject import method_names, refuse_unknown_knobs

    known = method_names()
    names = known if words.compressor == ("all",) else words.compressor
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"compressor={unknown[0]}: there is no such method; type all, or some of "
            f"{', '.join(known)}"
        )
    refuse_unknown_knobs(names, words.others)
    return names


def _find_trained(words: Predict, device: Device) -> Trained:
    from gcbench.predict.devices import interpolate
    from gcbench.predict.subject import dataset_of, facts_of, read_shapes, shapes_of_model

    if words.shapes:
        own = read_shapes(words.shapes)
        batch = words.batch_size or int(max(own.seconds))
        taken = words.seconds or interpolate(own.seconds, batch)
        compute = device.compute(own.name, batch, taken)
        return Trained(own.name, own.shapes, words.samples or 50_000, compute)
    dataset = words.dataset or dataset_of(words.model)
    facts = facts_of(words.model, dataset)
    compute = device.compute(words.model, words.batch_size, words.seconds)
    node = resolve(compose_words([f"model={words.model}", f"dataset={dataset}"]))["model"]
    shapes = shapes_of_model(node, facts)
    return Trained(words.model, shapes, words.samples or facts.samples, compute)


def predictions(words: Predict, scenario: Scenario) -> list[tuple[str, Prediction]]:
    """Return the steps of every method on every network and number of workers."""
    from gcbench.predict.model import predict

    return [
        (network, predict(m, w, cluster, scenario.compute, words.overlap))
        for network, cluster in scenario.clusters.items()
        for m in scenario.methods
        for w in words.workers
    ]


def _predict_steps(words: Predict) -> TextTable:
    scenario = build_scenario(words)
    rows = [
        [
            p.method,
            network,
            f"{p.workers:,}",
            seconds(p.step_seconds),
            f"{p.images_per_second:,.0f}",
            seconds(p.epoch_seconds(scenario.samples)),
            seconds(p.codec_seconds),
            seconds(p.exchange_seconds),
            seconds(p.exposed_seconds),
            f"{p.sent_bits / 8e6:,.3g}",
            f"{p.of_bound:.2f} x",
        ]
        for network, p in predictions(words, scenario)
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
        "of the bound",
    ]
    return TextTable(
        headings,
        rows,
        left=(0, 1),
        title=_title(words, scenario),
        notes=_notes(words, scenario),
    )


def _title(words: Predict, scenario: Scenario) -> str:
    parts = [scenario.title, *scenario.clusters]
    if words.workers_per_node > 1:
        parts.append(f"{words.workers_per_node} a node on {words.inside}")
    if words.overlap:
        parts.append("with overlap")
    return ", ".join(parts)


def _notes(words: Predict, scenario: Scenario) -> list[str]:
    from gcbench.predict.devices import OTHER

    notes = [
        f"Predicted with device {words.device}. The bound is a step without exchange and codec: "
        f"{seconds(scenario.compute.seconds)}."
        + (" With every=H a step is the mean of H." if max(words.every) > 1 else "")
    ]
    if scenario.guessed:
        notes.append(
            f"Codec seconds are the device's guess for any method ({OTHER}), and may be far off, "
            f"of: {', '.join(scenario.guessed)}. Time them: gcbench bench, gcbench predict measure."
        )
    if scenario.untimed:
        notes.append(
            f"Left out, as device={words.device} has no codec seconds of them: "
            f"{', '.join(scenario.untimed)}. Time them: gcbench bench, gcbench predict measure."
        )
    if scenario.left_out:
        reasons = "; ".join(f"{name} ({why})" for name, why in scenario.left_out.items())
        notes.append(f"Left out, as they cannot be predicted there: {reasons}")
    return notes


def _rank_methods(words: Predict) -> TextTable:
    from gcbench.predict.pays import find_answers

    workers = [w for w in words.workers if w > 1]
    if not workers:
        raise ConfigError("workers=1: one worker exchanges nothing; type workers=2,4,8,16")
    scenario = build_scenario(words)
    clusters, compute, dense = scenario.clusters, scenario.compute, scenario.dense
    others = [m for m in scenario.methods if m is not dense]
    (bound,) = find_answers([dense], dense, workers, clusters, compute, words.overlap)
    answers = find_answers(others, dense, workers, clusters, compute, words.overlap)
    if words.picture:
        from gcbench.predict.picture import draw

        network, cluster = next(iter(clusters.items()))
        title = _title(words, scenario)
        steps = bound.predictions[network]
        files = draw(answers, steps, network, cluster, Path(words.picture), title)
        log.info("drawn: %s", ", ".join(map(str, files)))
    headings = ["method"]
    columns = [["none: step", "none: samples/s", *(a.method.title for a in answers)]]
    for i, number in enumerate(workers):
        for network in clusters:
            step = bound.predictions[network][i]
            headings.append(f"W={number:,} {network}")
            columns.append(
                [seconds(step.step_seconds), f"{step.images_per_second:,.0f}"]
                + [f"{a.speedups[network][i]:.2f} x" for a in answers]
            )
        headings.append(f"W={number:,} pays")
        columns.append(["", "", *(_threshold(a.thresholds[i]) for a in answers)])
    return TextTable(
        headings,
        list(zip(*columns, strict=True)),
        groups=[True, True, *(False for _ in answers)],
        title=_title(words, scenario),
        notes=[
            "Times faster than none, which exchanges whole gradients, by the number of workers W "
            "and network; the fastest on average first. It pays at the rates between nodes in the "
            f"last column of each W{_latency_of(scenario)}.",
            *(_fastest([bound, *answers], network, workers) for network in clusters),
            "Speed only: how good the model gets is not predicted, neither with fewer bits nor "
            "with every=H. Train the candidates, or see what gcbench report has of them.",
            *_notes(words, scenario),
        ],
    )


def _latency_of(scenario: Scenario) -> str:
    """Return whose latency thresholds have, where there are several networks."""
    if len(scenario.clusters) == 1:
        return ""
    return f", with the latency of {next(iter(scenario.clusters))}"


def _fastest(answers: Sequence[Answer], network: str, workers: Sequence[int]) -> str:
    parts = []
    for i, number in enumerate(workers):
        best = max(answers, key=lambda a: a.speedups[network][i])
        step = best.predictions[network][i]
        parts.append(
            f"W={number:,} {best.method.title} ({seconds(step.step_seconds)}, "
            f"{step.images_per_second:,.0f} samples/s)"
        )
    return f"Fastest on {network}: {', '.join(parts)}."


def _threshold(threshold: Threshold) -> str:
    if threshold.never:
        return "never"
    if threshold.below:
        return f"< {rate(threshold.below)}"
    return f"> {rate(threshold.above)}" if threshold.above else "always"


def _measure(words: Predict) -> TextTable:
    from gcbench.predict.measure import measure_device, write_device

    if not words.paths or "device" not in words.given:
        raise ConfigError(
            "measure: type folders with bench.json and result.json in them, and device=FILE.yaml"
        )
    node = measure_device(words.paths, words.title or Path(words.device).stem)
    write_device(node, Path(words.device))
    rows = [
        ["codec", name, _sizes(entry["aggregate_seconds"])]
        for name, entry in node["codecs"].items()
    ]
    rows += [["model", name, _sizes(entry["seconds"])] for name, entry in node["models"].items()]
    headings = ["part", "name", "of values, or batches"]
    title = f"{words.device}: {node['title']}"
    return TextTable(headings, rows, left=range(3), title=title)


def _sizes(seconds_by_size: dict[int, Any]) -> str:
    return ", ".join(f"{size:,}" for size in seconds_by_size)


def _compare(words: Predict) -> TextTable:
    from gcbench.predict.measure import compare

    if not words.paths:
        raise ConfigError(
            "compare: type run directories, as in gcbench predict compare outputs/RUN network=1gbit"
        )
    network = _one_network(words) if "network" in words.given else None
    comparisons = [compare(path, network, words.latency, words.own) for path in words.paths]
    rows = [
        [
            c.title,
            str(c.workers),
            seconds(c.exchange_seconds),
            seconds(c.measured_exchange_seconds),
            f"{c.ratio:.3f}",
        ]
        for c in comparisons
    ]
    headings = ["run", "workers", "predicted", "measured", "measured / predicted"]
    return TextTable(headings, rows, title="exchange of a step")


def _one_network(words: Predict) -> str:
    if len(words.network) > 1:
        raise ConfigError(f"network={','.join(words.network)}: runs are compared on one; type one")
    return words.network[0]


def _list_links() -> TextTable:
    from gcbench.predict.links import read_presets

    rows = [
        [k, rate(float(v["bits_per_second"])), seconds(float(v["latency_seconds"])), v["source"]]
        for k, v in read_presets().items()
    ]
    headings = ["link", "of payload", "latency", "source"]
    return TextTable(headings, rows, left=(0, 3), title="network= and inside=")


def _list_devices() -> TextTable:
    rows = []
    for path in sorted((conf_directory() / "devices").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        rows.append([path.stem, node["title"], ", ".join(node["models"] or {})])
    return TextTable(["device", "what it is", "models"], rows, left=range(3), title="device=")
