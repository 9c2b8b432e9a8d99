"""`gcbench report html`: recorded runs as one page that needs no server and no network."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from statistics import median
from typing import Any

import numpy as np

from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.runner.data_facts import has_timed_samples
from gcbench.runner.drawing import COLORS, style_of_method
from gcbench.runner.identity import digest
from gcbench.runner.network import Link, exchange_seconds
from gcbench.runner.predict.devices import (
    Device,
    device_names,
    ethernets,
    read_device,
    read_presets,
)
from gcbench.runner.predict.model import codec_seconds
from gcbench.runner.predict.recorded import COMPUTATION, INSTANT, messages_of, network_of
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.records.summary import SHOWN_SCORES
from gcbench.runner.report.figures.bars import target_of
from gcbench.runner.report.figures.curves import track
from gcbench.runner.report.figures.series import (
    LABELS,
    Drawn,
    Series,
    Workload,
    group_configurations,
    label_of,
    name_configurations,
)
from gcbench.runner.report.measures import LOWER, MEASURES, measure, seconds
from gcbench.runner.report.selection import knobs_of

CURVES = (*SHOWN_SCORES, "train_loss", "relative_error")
AXES = ("step", "epoch", "bits", "seconds")
POINTS = 100  # at most, per curve; longer curves are subsampled
DIGITS = 5  # significant digits of every number on the page
LONG_NUMBER = re.compile(r"\d+\.\d{5,}")  # to be shortened in labels
TablesOf = Callable[[str], Mapping[str, set[str]]]
"""Takes a budget, and returns the tables that have a run in a row, by the run's identity."""
RacesOf = Callable[[Sequence[RecordedRun]], Iterable[Mapping[str, Any]]]
"""Takes runs, and returns what maps are drawn from: of who reaches a score first, or what pays."""


def build_page(
    runs: Sequence[RecordedRun],
    tables_of: TablesOf,
    races_of: RacesOf,
    answers_of: RacesOf,
    reload_seconds: int | None = None,
) -> str:
    """Return the page as HTML; the same runs give the same text.

    With `reload_seconds`, a browser reads the file again as often; its URL keeps what was chosen.

    Texts of runs may come from untrusted files. They are in a block of JSON that the script turns
    into text nodes, and the page's policy lets no other script run and nothing be loaded.
    """
    folder = files("gcbench.runner.report")
    style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
    )
    parts = {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        "style": style,
        "script": script,
        "reload": f'<meta http-equiv="refresh" content="{reload_seconds}">\n'
        * bool(reload_seconds),
        "data": _as_json(collect(runs, tables_of, races_of, answers_of)),
    }
    page = folder.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)


def _hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline element."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _as_json(value: Any) -> str:
    """Return JSON in which no text can close the HTML element around it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def collect(
    runs: Sequence[RecordedRun], tables_of: TablesOf, races_of: RacesOf, answers_of: RacesOf
) -> dict[str, Any]:
    """Return what the page shows: settings with their methods, and the links to choose from."""
    devices = [read_device(name) for name in device_names()]
    return {
        "runs": len(runs),
        "ratio_label": LABELS["ratio"],
        "lower": sorted(LOWER | {"train_loss"}),
        "curves": CURVES,
        "scores": SHOWN_SCORES,
        "links": [
            {
                "name": name,
                "rate": float(preset["bits_per_second"]),
                "latency": float(preset["latency_seconds"]),
                "source": preset["source"],
            }
            for name, preset in read_presets().items()
        ],
        "ethernets": ethernets(),
        "races": list(races_of(runs)),
        "answers": list(answers_of(runs)),
        "devices": {device.name: device.title for device in devices},
        "settings": list(_settings(runs, tables_of, devices)),
    }


def _settings(
    runs: Iterable[RecordedRun], tables_of: TablesOf, devices: Sequence[Device]
) -> Iterator[dict[str, Any]]:
    """Yield one setting per budget and workload, within which scores can be compared."""
    by_budget: dict[str, list[RecordedRun]] = {}
    for run in runs:
        by_budget.setdefault(run.budget, []).append(run)
    for budget, members in sorted(by_budget.items()):
        tables = tables_of(budget)
        for workload, configurations in group_configurations(members).items():
            yield _setting(workload, budget, configurations, tables, devices)


def _setting(
    workload: Workload,
    budget: str,
    configurations: list[list[RecordedRun]],
    tables_by_identity: Mapping[str, set[str]],
    devices: Sequence[Device],
) -> dict[str, Any]:
    series = name_configurations(configurations)
    common = _common_knobs([member.runs[0] for member in series])
    goals = Drawn([Series(s.label, s.family, done) for s in series if (done := _done(s))], [])
    tables = {
        digest(runs[0].flat): tables_by_identity.get(runs[0].result.identity, set())
        | {run.experiment.rpartition("/")[0] for run in runs if run.experiment}
        for runs in configurations
    }
    timed = [run.result for one in series for run in _done(one) if run.result.seconds]
    computed = [seconds(result, *_phases(result)) or 0.0 for result in timed]
    return {
        "id": f"{workload.name}-{budget}",
        "title": f"{workload.workers} x {workload.batch_size}, {workload.length}"
        + (f", split={workload.split}" if workload.split != "test" else ""),
        "model": workload.model,
        "data": workload.dataset,
        "budget": budget,
        "workers": workload.workers,
        "knobs": {key: format_value(value) for key, value in common.items()},
        "labels": {y: label_of(y, goals.series) for y in CURVES},
        "goals": {y: target_of(goals, y) for y in SHOWN_SCORES},
        "compute": {
            **({"measured": _round(median(computed))} if computed else {}),
            **_predicted_computation(workload, devices),
        },
        "oversubscribed": any(result.oversubscribed for result in timed),
        "methods": [
            {
                "label": LONG_NUMBER.sub(lambda n: f"{float(n[0]):.4g}", member.label),
                "family": member.family,
                "look": _look(member.family, [s.family for s in series[:i]].count(member.family)),
                "tables": sorted(tables[digest(member.runs[0].flat)]),
                "knobs": {
                    key: format_value(value)
                    for key, value in knobs_of(member.runs[0]).items()
                    if key not in common
                },
                **_on_links(member, devices),
                "runs": [_run(run) for run in member.runs],
            }
            for i, member in enumerate(series)
        ],
    }


def _look(family: str, nth: int) -> dict[str, Any]:
    """Return the color and the mark that the method has in pictures, too, and its line's index."""
    style = style_of_method(family)
    return {"color": COLORS.index(style["color"]), "mark": style["marker"], "nth": nth}


def _common_knobs(runs: Sequence[RecordedRun]) -> dict[str, Any]:
    first, *others = map(knobs_of, runs)
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def _done(series: Series) -> list[RecordedRun]:
    return [run for run in series.runs if run.done]


def _predicted_computation(workload: Workload, devices: Sequence[Device]) -> dict[str, Any]:
    """Return a step's seconds of forward and backward pass, by device that has the model.

    They are left out for samples of another shape than those with which devices time the model.
    """
    if not has_timed_samples(workload.model, workload.dataset):
        return {}
    return {
        device.name: _round(device.compute(workload.model, workload.batch_size).seconds)
        for device in devices
        if workload.model in device.models
    }


def _on_links(series: Series, devices: Sequence[Device]) -> dict[str, Any]:
    """Return what a step costs on a link between hosts of one worker, and coding seconds by device.

    An exchange takes `messages` x latency + `link_bits` / rate seconds, by the cost model of
    `runner/network.py`. A hierarchical method keeps its nodes, and exchanges within a node take no
    time.
    """
    done = [run.result for run in _done(series)]
    if not done:
        return {"messages": None, "link_bits": None, "coding": {}}
    means = [_exchange(result) for result in done]
    timed = [measure("coding_milliseconds", result) for result in done if result.seconds]
    coding: dict[str, float | None] = {
        device.name: value
        for device in devices
        if (value := _predicted_coding(done[0], device)) is not None
    }
    if timed:
        coding["measured"] = _round(sum(t for t in timed if t is not None) / 1e3 / len(timed))
    return {
        "messages": _round(sum(messages for messages, _ in means) / len(means)),
        "link_bits": _round(sum(bits for _, bits in means) / len(means)),
        "coding": coding,
    }


def _exchange(result: Result) -> tuple[float, float]:
    """Return how many latencies a step waits for, and how many bits it waits to pass a link."""
    messages = messages_of(result)
    by_latency = exchange_seconds(messages, network_of(result, Link(math.inf, 1)))
    return by_latency, exchange_seconds(messages, network_of(result, Link(1)))


def _predicted_coding(result: Result, device: Device) -> float | None:
    try:
        codec = device.codec(result.choices["compressor"], result.parameters or 0)
    except ConfigError:
        return None
    estimator, steps = result.estimator or {}, result.steps or 1
    # Steps from one exchange to the next, or their mean.
    every = estimator.get("every") or steps / (estimator.get("exchanges") or steps)
    return _round(codec_seconds(codec, messages_of(result), network_of(result, INSTANT)) / every)


def _phases(result: Result) -> list[str]:
    return [phase for phase in COMPUTATION if phase in (result.seconds or {})]


def _run(run: RecordedRun) -> dict[str, Any]:
    values = ((name, measure(name, run.result)) for name in MEASURES)
    lines = run.read_metrics()  # once for all curves and axes
    read = replace(run, read_metrics=lambda: lines)
    return {
        "place": run.place,
        "seed": run.seed,
        "status": run.status,
        "reason": run.result.reason,
        "finished": run.result.finished_minute,
        "measures": {name: _round(value) for name, value in values if value is not None},
        "curves": {y: curve for y in CURVES if (curve := _curve(read, y))},
    }


def _curve(run: RecordedRun, y: str) -> dict[str, Any] | None:
    """Return a curve over every axis that the run has, with at most POINTS points."""
    tracks = {x: track(run, y, x) for x in AXES}
    by_step = tracks["step"]
    if by_step is None:
        return None
    length = len(by_step.x)
    places = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
    return {
        **{x: [_round(v) for v in t.x[places]] for x, t in tracks.items() if t is not None},
        "y": [_round(v) for v in by_step.y[places]],
    }


def _round(value: float) -> float | int | None:
    """Return a number with DIGITS significant digits; None for NaN and infinity."""
    number = float(value)
    if not math.isfinite(number):
        return None
    rounded = float(f"{number:.{DIGITS}g}")
    if number.is_integer():
        return int(number)
    return int(rounded) if rounded.is_integer() else rounded
