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
    from gcbench.predict.model import Cluster, Compute, Method, Prediction
    from gcbench.predict.pays import Threshold

log = logging.getLogger("gcbench")


class Scenario(NamedTuple):
    """The subject of a prediction: methods on a model, a device and a cluster."""

    title: str
    methods: list[Method]
    dense: Method
    cluster: Cluster
    compute: Compute
    samples: int


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
        return _tell_where_methods_pay(words) if words.command == "pays" else _predict_steps(words)
    except ValueError as error:  # a method that cannot run on such a cluster
        raise ConfigError(str(error)) from error


def build_scenario(words: Predict) -> Scenario:
    from gcbench.predict.devices import interpolate, read_device
    from gcbench.predict.links import read_link
    from gcbench.predict.model import Cluster
    from gcbench.predict.subject import (
        facts_of,
        method_names,
        methods,
        read_shapes,
        shapes_of_model,
    )

    device = read_device(words.device)
    cluster = Cluster(
        read_link("network", words.network, words.latency),
        read_link("inside", words.inside),
        words.workers_per_node,
    )
    known = method_names()
    names = known if words.compressor == ("all",) else words.compressor
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"compressor={unknown[0]}: there is no such method; type all, or some of "
            f"{', '.join(known)}"
        )
    if words.shapes:
        own = read_shapes(words.shapes)
        batch = words.batch_size or int(max(own.seconds))
        name, shapes, samples = own.name, own.shapes, words.samples or 50_000
        taken = words.seconds or interpolate(own.seconds, batch)
        compute = device.compute(name, batch, taken)
    else:
        facts = facts_of(words.model, words.dataset)
        compute = device.compute(words.model, words.batch_size, words.seconds)
        node = resolve(compose_words([f"model={words.model}"]))["model"]
        name, shapes = words.model, shapes_of_model(node, facts)
        samples = words.samples or facts.samples
    every = methods(names, words.others, shapes, device, words.workers_per_node)
    dense = next((m for m in every if m.family == "none"), None)
    return Scenario(
        f"{name}, {device.title}, {compute.batch_size} a worker",
        every,
        dense or methods(["none"], [], shapes, device, 1)[0],
        cluster,
        compute,
        samples,
    )


def predictions(words: Predict, scenario: Scenario) -> list[Prediction]:
    """Return the steps of every method on every number of workers."""
    from gcbench.predict.model import predict

    return [
        predict(m, w, scenario.cluster, scenario.compute, words.overlap)
        for m in scenario.methods
        for w in words.workers
    ]


def _predict_steps(words: Predict) -> TextTable:
    scenario = build_scenario(words)
    rows = [
        [
            p.method,
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
        for p in predictions(words, scenario)
    ]
    headings = [
        "method",
        "workers",
        "step",
        "images/s",
        "epoch",
        "codec",
        "exchange",
        "exposed",
        "MB sent",
        "of the bound",
    ]
    return TextTable(headings, rows, title=_title(words, scenario), notes=[_note(words, scenario)])


def _title(words: Predict, scenario: Scenario) -> str:
    parts = [scenario.title, words.network]
    if words.workers_per_node > 1:
        parts.append(f"{words.workers_per_node} a node on {words.inside}")
    if words.overlap:
        parts.append("with overlap")
    return ", ".join(parts)


def _note(words: Predict, scenario: Scenario) -> str:
    return (
        f"Predicted with device {words.device}. The bound is a step without exchange and codec: "
        f"{seconds(scenario.compute.seconds)}."
    )


def _tell_where_methods_pay(words: Predict) -> TextTable:
    from gcbench.predict.model import predict
    from gcbench.predict.pays import find_answers

    scenario = build_scenario(words)
    cluster, compute, dense = scenario.cluster, scenario.compute, scenario.dense
    workers = [2**i for i in range(1, 11)]
    if "workers" in words.given:
        workers = [w for w in words.workers if w > 1]
    size = cluster.workers_per_node
    workers = [w for w in workers if w > size or w % size == 0]
    compressing = [m for m in scenario.methods if m is not dense]
    answers = find_answers(compressing, dense, workers, cluster, compute, words.overlap)
    rows = []
    for answer in answers:
        pairs = zip(answer.predictions, answer.pays, strict=True)
        paying = [p.workers for p, pays in pairs if pays]
        thresholds = map(_threshold, answer.thresholds)
        of_bound = f"{answer.predictions[-1].of_bound:.2f} x"
        rows.append([answer.method.title, _range(paying, workers), *thresholds, of_bound])
    if words.picture:
        from gcbench.predict.picture import draw

        dense_steps = [predict(dense, w, cluster, compute, words.overlap) for w in workers]
        title = _title(words, scenario)
        files = draw(answers, dense_steps, cluster, Path(words.picture), title)
        log.info("drawn: %s", ", ".join(map(str, files)))
    headings = [
        "pays",
        f"on {words.network}, workers",
        *(f"W = {w:,}" for w in workers),
        f"of the bound, W = {workers[-1]:,}",
    ]
    note = (
        "A method pays where its step is shorter than the dense one: at which rates between nodes, "
        "by the number of workers W."
    )
    notes = [note, _note(words, scenario)]
    return TextTable(headings, rows, title=_title(words, scenario), notes=notes)


def _threshold(threshold: Threshold) -> str:
    if threshold.never:
        return "never"
    if threshold.below:
        return f"< {rate(threshold.below)}"
    return f"> {rate(threshold.above)}" if threshold.above else "always"


def _range(paying: Sequence[int], every: Sequence[int]) -> str:
    """Return the numbers of workers with which a method pays, such as from 8."""
    if not paying:
        return "none"
    if len(paying) == len(every):
        return "all"
    inside = [w for w in every if paying[0] <= w <= paying[-1]]
    if len(inside) > len(paying):
        return ", ".join(f"{w:,}" for w in paying)
    if paying[-1] == every[-1]:
        return f"from {paying[0]:,}"
    return f"to {paying[-1]:,}" if paying[0] == every[0] else f"{paying[0]:,} to {paying[-1]:,}"


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
    network = words.network if "network" in words.given else None
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
