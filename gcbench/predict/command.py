"""`gcbench predict`: what was asked, predicted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from gcbench.config import ConfigError, compose_words, conf_directory, resolve
from gcbench.console import TextTable, show
from gcbench.predict.units import rate, seconds
from gcbench.predict.words import Predict, read

if TYPE_CHECKING:
    from gcbench.predict.model import Cluster, Compute, Method, Prediction

log = logging.getLogger("gcbench")


class Asked(NamedTuple):
    title: str
    methods: list[Method]
    dense: Method
    cluster: Cluster
    compute: Compute
    samples: int


def predict_steps(typed: Sequence[str]) -> None:
    """Raises ConfigError with one sentence."""
    words = read(typed)
    show(_answer(words), words.format)


def _answer(words: Predict) -> TextTable:
    match words.command:
        case "links":
            return _links()
        case "profiles":
            return _profiles()
        case "measure":
            return _measured(words)
        case "compare":
            return _compared(words)
    if words.table:
        from gcbench.predict.papers import paper_table

        return paper_table(words.table)
    try:
        return _paying(words) if words.command == "pays" else _predicted(words)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def asked(words: Predict) -> Asked:
    from gcbench.predict.links import link
    from gcbench.predict.model import Cluster
    from gcbench.predict.profiles import at, profile
    from gcbench.predict.subject import choices, facts_of, methods, read_shapes, shapes_of_model

    device = profile(words.profile)
    cluster = Cluster(
        link("network", words.network, words.latency),
        link("inside", words.inside),
        words.workers_per_node,
    )
    names = choices() if words.compressor == ("all",) else words.compressor
    if unknown := [name for name in names if name not in choices()]:
        raise ConfigError(
            f"compressor={unknown[0]}: there is no such method; type all, or some of {', '.join(choices())}"
        )
    if words.shapes:
        own = read_shapes(words.shapes)
        batch = words.batch_size or int(max(own.seconds))
        name, shapes, samples = own.name, own.shapes, words.samples or 50_000
        compute = device.compute(name, batch, words.seconds or at(own.seconds, batch))
    else:
        facts = facts_of(words.model, words.dataset)
        compute = device.compute(words.model, words.batch_size, words.seconds)
        node = resolve(compose_words([f"model={words.model}"]))["model"]
        name, shapes, samples = (
            words.model,
            shapes_of_model(node, facts),
            words.samples or facts.samples,
        )
    found = methods(names, words.others, shapes, device, words.workers_per_node)
    dense = (
        next((m for m in found if m.family == "none"), None)
        or methods(["none"], [], shapes, device, 1)[0]
    )
    return Asked(
        f"{name}, {device.title}, {compute.batch_size} a worker",
        found,
        dense,
        cluster,
        compute,
        samples,
    )


def predictions(words: Predict, given: Asked) -> list[Prediction]:
    from gcbench.predict.model import predict

    return [
        predict(m, w, given.cluster, given.compute, words.overlap)
        for m in given.methods
        for w in words.workers
    ]


def _predicted(words: Predict) -> TextTable:
    given = asked(words)
    rows = [
        [
            p.method,
            f"{p.workers:,}",
            seconds(p.step_seconds),
            f"{p.images_per_second:,.0f}",
            seconds(p.epoch_seconds(given.samples)),
            seconds(p.codec_seconds),
            seconds(p.exchange_seconds),
            seconds(p.exposed_seconds),
            f"{p.sent_bits / 8e6:,.3g}",
            f"{p.of_bound:.2f} x",
        ]
        for p in predictions(words, given)
    ]
    columns = [
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
    return TextTable(columns, rows, title=_title(words, given), notes=_notes(words, given))


def _title(words: Predict, given: Asked) -> str:
    inside = (
        f", {words.workers_per_node} a node on {words.inside}" if words.workers_per_node > 1 else ""
    )
    return f"{given.title}, {words.network}{inside}{', with overlap' if words.overlap else ''}"


def _notes(words: Predict, given: Asked) -> list[str]:
    return [
        f"Predicted with profile {words.profile}. The bound is a step without exchange and codec: "
        f"{seconds(given.compute.seconds)}."
    ]


def _paying(words: Predict) -> TextTable:
    from gcbench.predict.model import predict
    from gcbench.predict.pays import Threshold, answers

    given = asked(words)
    workers = (
        [w for w in words.workers if w > 1]
        if "workers" in words.given
        else [2**i for i in range(1, 11)]
    )
    workers = [
        w
        for w in workers
        if w > given.cluster.workers_per_node or w % given.cluster.workers_per_node == 0
    ]
    compressing = [m for m in given.methods if m is not given.dense]
    found = answers(compressing, given.dense, workers, given.cluster, given.compute, words.overlap)

    def told(limit: Threshold) -> str:
        if limit.never:
            return "never"
        below, above = limit.below, limit.above
        return f"< {rate(below)}" if below else f"> {rate(above)}" if above else "always"

    rows = []
    for answer in found:
        here = [f"{p.of_bound:.2f} x" for p in answer.predictions]
        paying = [
            p.workers for p, pays in zip(answer.predictions, answer.pays, strict=True) if pays
        ]
        rows.append(
            [answer.method.title, _range(paying, workers), *map(told, answer.thresholds), here[-1]]
        )
    if words.picture:
        from gcbench.predict.picture import draw

        dense = [
            predict(given.dense, w, given.cluster, given.compute, words.overlap) for w in workers
        ]
        drawn = draw(found, dense, given.cluster, Path(words.picture), _title(words, given))
        log.info("drawn: %s", ", ".join(map(str, drawn)))
    columns = [
        "pays",
        f"on {words.network}, workers",
        *(f"W = {w:,}" for w in workers),
        f"of the bound, W = {workers[-1]:,}",
    ]
    note = "A method pays where its step is shorter than the dense one: at which rates between nodes, by the number of workers W."
    notes = [note, *_notes(words, given)]
    return TextTable(columns, rows, title=_title(words, given), notes=notes)


def _range(paying: Sequence[int], every: Sequence[int]) -> str:
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


def _measured(words: Predict) -> TextTable:
    from gcbench.predict.measure import measured, write

    if not words.paths or "profile" not in words.given:
        raise ConfigError(
            "measure: type folders with bench.json and result.json in them, and profile=FILE.yaml"
        )
    node = measured(words.paths, words.title or Path(words.profile).stem)
    write(node, Path(words.profile))
    rows = [
        ["codec", name, ", ".join(e["aggregate_seconds"])]
        for name, e in _texts(node["codecs"]).items()
    ]
    rows += [["model", name, ", ".join(e["seconds"])] for name, e in _texts(node["models"]).items()]
    headings = ["part", "name", "of values, or batches"]
    title = f"{words.profile}: {node['title']}"
    return TextTable(headings, rows, left=range(3), title=title)


def _texts(entries: dict[str, Any]) -> dict[str, Any]:
    return {
        n: {k: [f"{x:,}" for x in v] for k, v in e.items() if isinstance(v, dict)}
        for n, e in entries.items()
    }


def _compared(words: Predict) -> TextTable:
    from gcbench.predict.measure import compared

    if not words.paths:
        raise ConfigError(
            "compare: type run directories, as in gcbench predict compare outputs/RUN network=1gbit"
        )
    network = words.network if "network" in words.given else None
    found = [compared(path, network, words.latency, words.own) for path in words.paths]
    rows = [
        [
            c.title,
            str(c.workers),
            seconds(c.exchange_seconds),
            seconds(c.measured_exchange_seconds),
            f"{c.ratio:.3f}",
        ]
        for c in found
    ]
    headings = ["run", "workers", "predicted", "measured", "measured / predicted"]
    return TextTable(headings, rows, title="exchange of a step")


def _links() -> TextTable:
    from gcbench.predict.links import presets

    rows = [
        [k, rate(float(v["bits_per_second"])), seconds(float(v["latency_seconds"])), v["source"]]
        for k, v in presets().items()
    ]
    headings = ["link", "of payload", "latency", "source"]
    return TextTable(headings, rows, left=(0, 3), title="network= and inside=")


def _profiles() -> TextTable:
    rows = []
    for path in sorted((conf_directory() / "profile").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        rows.append([path.stem, node["title"], ", ".join(node["models"] or {})])
    return TextTable(["profile", "device", "models"], rows, left=range(3), title="profile=")
