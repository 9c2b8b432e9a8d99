"""The scenario of a prediction: methods on a model, a device and a cluster, as they were typed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import log as ln
from typing import NamedTuple

from gcbench.core.conf import choices_in, method_files
from gcbench.core.errors import ConfigError, as_known, near
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.data_facts import dataset_of, facts_of, has_timed_samples
from gcbench.runner.predict.arguments import OnClusters, Pays, Steps
from gcbench.runner.predict.devices import (
    OTHER,
    Device,
    format_seconds,
    interpolate,
    read_device,
    read_link,
)
from gcbench.runner.predict.job import DENSE, HALF, read_job
from gcbench.runner.predict.model import Cluster, Compute, Method, Prediction, predict
from gcbench.runner.predict.payload import Shapes
from gcbench.runner.predict.subject import (
    flops_of,
    make_methods,
    read_shapes,
    refuse_unknown_knobs,
    shapes_of_model,
)

ASSUMED_SAMPLES = 50_000  # in an epoch of shapes=FILE, which names no data set

log = logging.getLogger("gcbench")


class Scenario(NamedTuple):
    """The subject of a prediction: methods on a model, a device and a cluster."""

    title: str
    methods: list[Method]
    dense: Method
    half: Method | None  # dense in 16 bits, if the device knows its coding
    clusters: dict[str, Cluster]  # by network
    compute: Compute
    samples: int
    dataset: str | None  # None: that of shapes=FILE, which names none
    left_out: dict[str, str]  # with compressor=all: methods that cannot run there, and why
    untimed: list[str]  # with compressor=all: methods for which the device has no codec seconds
    estimate: str  # what the time of the computation follows from, if the device has none
    is_old: bool  # whether the device's codecs were timed before they were changed
    guessed: list[str]  # methods with the codec seconds of the device for any other method


class ModelOnDevice(NamedTuple):
    """A model, the samples of an epoch, and the time that a device takes to compute a step."""

    name: str
    shapes: Shapes
    samples: int
    compute: Compute
    estimate: str = ""  # what its time follows from, if the device does not know it


def build_scenario(arguments: OnClusters) -> Scenario:
    """Return the scenario that was typed; raise ConfigError if a part of it is not known."""
    if isinstance(arguments, Pays) and arguments.profile:
        return _scenario_of_job(arguments, arguments.profile)
    device = read_device(arguments.device)
    inside = read_link("inside", arguments.inside)
    clusters = {
        name: Cluster(
            read_link("network", name, arguments.latency), inside, arguments.workers_per_node
        )
        for name in arguments.network
    }
    for cluster in clusters.values():
        for workers in arguments.workers:
            cluster.network(workers)  # refuses nodes that are not full, before steps are metered
    names = _choose_methods(arguments)
    untimed = [] if arguments.compressor != ("all",) else [n for n in names if not device.times(n)]
    model = find_model(arguments, device)
    names = [name for name in names if name not in untimed]
    log.info("metering a step of %s with %d methods", model.name, len(names))
    single, left_out = [], {}
    for choice in names:
        try:
            choices = make_methods(
                choice,
                arguments.others,
                model.shapes,
                device,
                arguments.workers_per_node,
                arguments.config_dir,
            )
            for method in choices:
                for workers in arguments.workers:
                    method.messages(workers)
            single += choices
        except ValueError as error:
            if arguments.compressor != ("all",):
                raise
            left_out[choice] = str(error)
    every = [method.at_every(h, arguments.delay) for method in single for h in arguments.every]
    dense = next((m for m in every if m.family == "none" and m.every == 1), None)
    half = next((m for m in every if m.family == HALF and m.every == 1), None)
    if half is None and device.times(HALF):
        (half,) = make_methods(HALF, [], model.shapes, device, 1)
    return Scenario(
        title=f"{model.name}, {device.title}, {model.compute.batch_size} per worker",
        methods=every,
        dense=dense or make_methods("none", [], model.shapes, device, 1)[0],
        half=half,
        clusters=clusters,
        compute=model.compute,
        samples=model.samples,
        dataset=None if arguments.shapes else arguments.dataset or dataset_of(arguments.model),
        left_out=left_out,
        untimed=untimed,
        estimate=model.estimate,
        is_old=device.is_old,
        guessed=sorted({m.family for m in single} - {*device.codecs, "none"}),
    )


def _scenario_of_job(arguments: Pays, file: str) -> Scenario:
    """Return a profiled training loop with other links and workers, by default its own."""
    job = read_job(file)
    names = arguments.network if "network" in arguments.given else ()
    links = {name: read_link("network", name, arguments.latency) for name in names}
    inside = read_link("inside", arguments.inside)
    clusters = {
        name: Cluster(link, inside, arguments.workers_per_node)
        for name, link in (links or {"its own link": job.link}).items()
    }
    methods = [job.method(one) for one in job.methods]
    for method in methods:
        for workers in arguments.workers:
            method.messages(workers)
    half, dense = (next(m for m in methods if m.title == title) for title in (HALF, DENSE))
    every = [
        method.at_every(h, arguments.delay)
        for method in methods
        for h in arguments.every
        if (method, h) != (dense, 1)
    ]
    samples = arguments.batch_size or 1
    compute = job.compute._replace(batch_size=samples)
    return Scenario(
        title=f"{job.title}, {samples} per worker",
        methods=every,
        dense=dense,
        half=half,
        clusters=clusters,
        compute=compute,
        samples=ASSUMED_SAMPLES,
        dataset=None,
        left_out={},
        untimed=[],
        estimate=""
        if arguments.batch_size
        else "Type batch_size=N, the samples of a worker in a "
        "step of the loop, for samples per second.",
        is_old=False,
        guessed=[],
    )


def _choose_methods(arguments: OnClusters) -> Sequence[str]:
    """Return the choices of conf/compressor that were asked for."""
    known = [*method_files(arguments.config_dir)]
    names = [as_known(name, [*known, "all"]) for name in arguments.compressor]
    names = known if names == ["all"] else names
    if "all" in names:
        raise ConfigError(
            f"compressor={','.join(names)}: all has the others, too; type all alone, or leave it "
            "out"
        )
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"compressor={unknown[0]}: there is no such method; type "
            f"{near(unknown[0], known) or 'all, or some of ' + ', '.join(known)}"
        )
    refuse_unknown_knobs(names, arguments.others, arguments.config_dir)
    return names


def find_model(arguments: OnClusters, device: Device) -> ModelOnDevice:
    """Return the model that was typed, or the one in `shapes=FILE`, with its time on the device."""
    samples = arguments.samples if isinstance(arguments, Steps) else None
    if arguments.shapes:
        model = read_shapes(arguments.shapes)
        batch = arguments.batch_size or int(max(model.seconds))
        taken = arguments.seconds or interpolate(model.seconds, batch)
        compute = device.compute(model.title, batch, taken)
        return ModelOnDevice(model.title, model.tensors, samples or ASSUMED_SAMPLES, compute)
    if arguments.model not in (models := choices_in("model")):
        likely = near(arguments.model, models)
        raise ConfigError(
            f"model={arguments.model}: there is no such choice; type model="
            f"{likely or ', '.join(models)}, or shapes=FILE for a model of your own"
        )
    dataset = arguments.dataset or dataset_of(arguments.model)
    facts = facts_of(arguments.model, dataset)
    if arguments.seconds is None and not has_timed_samples(arguments.model, dataset):
        raise ConfigError(
            f"dataset={dataset}: the device's seconds of model={arguments.model} are of "
            f"{dataset_of(arguments.model)}, whose samples have another shape; type seconds=0.1 "
            "batch_size=N, those of a batch"
        )
    config = resolve(compose_overrides([f"model={arguments.model}", f"dataset={dataset}"]))
    size, seconds, estimate = arguments.batch_size, arguments.seconds, ""
    if seconds is None and arguments.model not in device.models:
        size, seconds, estimate = _estimate(arguments.model, device, size)
    compute = device.compute(arguments.model, size, seconds)
    shapes = shapes_of_model(config.model.as_dict(), facts)
    return ModelOnDevice(arguments.model, shapes, samples or facts.samples, compute, estimate)


def _estimate(
    model: str, device: Device, batch: int | None
) -> tuple[int | None, float | None, str]:
    """Return the batch and the seconds of a model, by the FLOPs of a known one, and a sentence."""
    flops, known = flops_of(model), {name: flops_of(name) for name in device.models}
    near_by = [name for name in known if flops and known[name]]
    if not near_by:
        return batch, None, ""
    nearest = min(near_by, key=lambda name: abs(ln(known[name] / flops)))
    alike = device.compute(nearest, batch)
    seconds = alike.seconds * flops / known[nearest]
    return (
        alike.batch_size,
        seconds,
        f"Device {device.name} has no seconds of {model}: {format_seconds(seconds)} is estimated "
        f"from {nearest}, which has {known[nearest] / flops:.3g} times its FLOPs. Small models "
        "take longer than that; type seconds=0.1 batch_size=N, those that you measured.",
    )


def predictions(arguments: OnClusters, scenario: Scenario) -> list[tuple[str, Prediction]]:
    """Return (network, step) for every method, network and number of workers."""
    return [
        (network, predict(m, w, cluster, scenario.compute, arguments.overlap))
        for network, cluster in scenario.clusters.items()
        for m in scenario.methods
        for w in arguments.workers
    ]


def notes_of(arguments: OnClusters, scenario: Scenario) -> list[str]:
    """Return what a prediction assumes, leaves out or does not know, one sentence or two each."""
    notes = [
        f"Predicted with {_measured_by(arguments)}. The bound is a step without exchange and "
        f"codec: {format_seconds(scenario.compute.seconds)}."
        + (" With every=H a step is the mean of H." if max(arguments.every) > 1 else "")
    ]
    if scenario.estimate:
        notes.append(scenario.estimate)
    if scenario.is_old:
        notes.append(
            f"Codecs were changed after device={arguments.device} was measured, and its seconds of "
            "coding are old; gcbench predict machine device=mine.yaml measures yours."
        )
    if arguments.others:
        notes.append(
            f"Codec seconds are those of device {arguments.device}, which do not depend on the "
            f"knobs ({', '.join(arguments.others)}); what is sent does."
        )
    sent_whole = _sent_whole(arguments, scenario)
    if small := [method.title for method in sent_whole if method.too_small]:
        notes.append(
            f"No fewer bits than fp32: {', '.join(small)}. Tensors of fewer than min_size values "
            "are sent whole; type min_size=0 to compress them, too."
        )
    if others := [method.title for method in sent_whole if not method.too_small]:
        notes.append(
            f"No fewer bits than fp32: {', '.join(others)}. With these knobs they send that much "
            "of such tensors."
        )
    if scenario.guessed:
        notes.append(
            f"Codec seconds are the device's guess for any method ({OTHER}), and may be far off, "
            f"of: {', '.join(scenario.guessed)}. Time them: gcbench predict machine."
        )
    if scenario.untimed:
        notes.append(
            f"Left out, as device={arguments.device} has no codec seconds of them: "
            f"{', '.join(scenario.untimed)}. Time them: gcbench predict machine."
        )
    if scenario.left_out:
        reasons = "; ".join(f"{name} ({why})" for name, why in scenario.left_out.items())
        notes.append(f"Left out, as they cannot be predicted there: {reasons}")
    return notes


def _measured_by(arguments: OnClusters) -> str:
    profiled = arguments.profile if isinstance(arguments, Pays) else None
    return f"profile {profiled}" if profiled else f"device {arguments.device}"


def _sent_whole(arguments: OnClusters, scenario: Scenario) -> list[Method]:
    """Return the methods that compress nothing of this model between nodes."""
    workers = max(2, *arguments.workers)
    sent = {
        method: sum(m.bits for m in method.messages(workers) if m.level != "inside")
        for method in scenario.methods
        if method.family != "none"
    }
    return [method for method, bits in sent.items() if bits >= 8 * method.dense_bytes]
