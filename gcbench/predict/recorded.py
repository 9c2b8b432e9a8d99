"""What was recorded: devices measured from files of runs, and exchanges of runs on other links."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import yaml

from gcbench.comm.network import Collective, Level, Link, Message, Network, exchange_seconds
from gcbench.config import ConfigError
from gcbench.identity import Flat, flat_differences, format_differences, iterate_leaves
from gcbench.predict.devices import emulated_link, read_link
from gcbench.predict.model import Cluster
from gcbench.records.reading import read_json
from gcbench.records.schema import Network as RecordedNetwork
from gcbench.records.schema import Result
from gcbench.records.store import RecordedRun, find_runs, read_run

INSTANT = Link(math.inf)


def seconds_on(result: Result, network: str) -> float:
    """Return the seconds that a mean step's exchange takes between hosts of one worker each.

    A hierarchical method keeps its nodes, and exchanges within a node take no time.
    """
    link = read_link("network", network)
    return exchange_seconds(messages_of(result), network_of(result, link))


def messages_of(result: Result) -> list[Message]:
    """Return the collectives of a mean step."""
    steps = result.steps or 1
    kinds = [(cast(Level, c.level), cast(Collective, c.collective)) for c in result.collectives]
    return [
        Message(*kind, c.messages / steps, c.sent_bits / steps)
        for kind, c in zip(kinds, result.collectives, strict=True)
        if c.messages and c.workers > 1
    ]


def network_of(result: Result, between: Link) -> Network:
    """Return the network of hosts of one worker, or of a hierarchical method's nodes."""
    inside = [c.workers for c in result.collectives if c.level == "inside"]
    return Network(result.workers or 1, inside[0] if inside else 1, INSTANT, between)


log = logging.getLogger("gcbench")

COPY_BYTES_PER_SECOND = 10**10  # assumed if there is no benchmark
BACKWARD_SHARE = 0.667  # assumed if there is no run
PARTS = {"aggregate": "aggregate_seconds", "decode-and-add": "decode_seconds"}
COMPUTATION = ("data", "forward", "backward", "update")
# Keys on which the seconds of a batch depend, besides those of the model and the data set.
TIMED = (
    "trainer.precision",
    "trainer.threads",
    "trainer.accumulate",
    "trainer.channels_last",
    "trainer.compile",
)
# Keys of a benchmark on which the seconds of a codec depend.
BENCHED = ("compressor", "codec_backend", "threads")


def _benchmarks(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    for path in map(Path, paths):
        for file in [path] if path.is_file() else sorted(path.rglob("bench.json")):
            if file.name != "bench.json":
                continue
            try:
                yield _read_benchmark(file)
            except ValueError as error:
                log.warning("not read: %s: %s", file, error)


def _read_benchmark(file: Path) -> dict[str, Any]:
    """Return the benchmark in a file; raise ValueError if it holds none."""
    try:
        bench = read_json(file)
        _ = bench["config"]["choices"]["compressor"]
        _ = [
            1e9 * row["memcpy_gb_per_second"] + row["values"] + row["milliseconds"]
            for row in bench["local"]
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"not a gcbench benchmark ({type(error).__name__}: {error})") from error
    return dict(bench)


def _timed_runs(paths: Sequence[str]) -> list[RecordedRun]:
    """Return the runs with times in and below `paths`, sorted by directory."""
    folders = [
        Path(path).parent if Path(path).name == "result.json" else Path(path)
        for path in paths
        if Path(path).name != "bench.json"
    ]
    found = find_runs(folders)
    found.warn()
    ordered = sorted(found.runs, key=lambda run: run.place)
    return [run for run in ordered if run.result.seconds]


def measure_device(paths: Sequence[str], title: str) -> dict[str, Any]:
    """Return the content of a device file, as in conf/devices, from the runs below `paths`.

    Codec times come from `gcbench bench` (aggregate, decode-and-add), computation times from runs
    with real workers; where there are several, it is their median. Raises ConfigError if there
    are none, or if those of one method or model have different settings.
    """
    for path in paths:
        if not Path(path).exists():
            raise ConfigError(
                f"{path}: there is no such file or folder; type one with bench.json or result.json "
                "in it"
            )
    # With draws=[] a benchmark only has steps between processes, and no codec times.
    benches = [bench for bench in _benchmarks(paths) if bench["local"]]
    runs = _timed_runs(paths)
    if not benches and not runs:
        raise ConfigError(
            f"{', '.join(paths)}: no bench.json, and no result.json with times, in or below it"
        )
    copies = [1e9 * row["memcpy_gb_per_second"] for b in benches for row in b["local"]]
    shares = [phase_seconds(run.result, "backward") / _computation(run.result) for run in runs]
    codecs: dict[str, Any] = {}
    methods: dict[str, Flat] = {}
    for bench in benches:
        compressor = bench["config"]["choices"]["compressor"]
        method = _benched_settings(bench)
        if different := flat_differences(methods.setdefault(compressor, method), method):
            raise ConfigError(
                f"{', '.join(paths)}: the benchmarks of compressor={compressor} differ "
                f"({format_differences(different)}), and a device file has one entry per method; "
                "type those of one setting"
            )
        entry = codecs.setdefault(compressor, {part: {} for part in PARTS.values()})
        for row in bench["local"]:
            if part := PARTS.get(row["part"]):
                entry[part].setdefault(row["values"], []).append(row["milliseconds"] / 1e3)
    models: dict[str, Any] = {}
    settings: dict[str, Flat] = {}
    for run in runs:
        model, timed = run.result.choices["model"], _timed_settings(run)
        if different := flat_differences(settings.setdefault(model, timed), timed):
            raise ConfigError(
                f"{', '.join(paths)}: the runs of model={model} differ "
                f"({format_differences(different)}), and a device file has one entry per model; "
                "type those of one setting"
            )
        entry = models.setdefault(model, {"seconds": {}})
        batch_size = run.config["trainer"]["batch_size"]
        entry["seconds"].setdefault(batch_size, []).append(_computation(run.result))
    return {
        "title": title,
        "copy_bytes_per_second": round(median(copies)) if copies else COPY_BYTES_PER_SECOND,
        "backward_share": round(median(shares), 3) if shares else BACKWARD_SHARE,
        "codecs": {k: {part: _medians(v) for part, v in e.items() if v} for k, e in codecs.items()},
        "models": {k: {part: _medians(v) for part, v in e.items()} for k, e in models.items()},
    }


def _benched_settings(bench: dict[str, Any]) -> Flat:
    """Return the settings on which the seconds of a codec depend."""
    settings = {key: bench["config"][key] for key in BENCHED if key in bench["config"]}
    return {"device": bench.get("device"), **dict(iterate_leaves(settings))}


def _timed_settings(run: RecordedRun) -> Flat:
    """Return the settings on which the seconds of a batch depend, whatever the method."""
    timed = {
        key: value
        for key, value in run.executed.items()
        if key in TIMED or (key.startswith(("model.", "dataset.")) and key != "dataset.split")
    }
    return {"dataset": run.result.choices["dataset"], "device": run.result.device, **timed}


def _medians(table: dict[int, list[float]]) -> dict[int, float]:
    return {size: float(f"{median(seconds):.4g}") for size, seconds in sorted(table.items())}


def _computation(result: Result) -> float:
    return sum(phase_seconds(result, phase) for phase in COMPUTATION)


def phase_seconds(result: Result, phase: str) -> float:
    if not result.seconds or phase not in result.seconds:
        raise ConfigError(
            f"a result without the seconds of {phase}; type runs with several processes"
        )
    return result.seconds[phase].mean


COMMENTS = {
    "title": "what was measured",
    "processor": "for which codecs and kernels were compiled",
    "measured": "seconds of the processor, on one thread",
    "sources": "of codecs and methods: a hash without comments and imports",
    "copy_bytes_per_second": "copies of fp32 values beside the benchmarks",
    "backward_share": "share of the models' seconds",
    "codecs": "seconds by number of values: a worker's own work (aggregate), and each further "
    "message (decode)",
    "models": "forward, backward and update, with data if runs were measured: seconds by samples "
    "per worker",
}
# Comments on assumed values, by the part of the device whose absence leaves them unmeasured.
ASSUMED = {
    "codecs": {
        "copy_bytes_per_second": "copies of fp32 values; assumed, as there was no benchmark"
    },
    "models": {"backward_share": "share of the models' seconds; assumed, as there was no run"},
}


MADE = "# Made by gcbench predict "  # and how, at the top of a device file


def write_device(node: Mapping[str, Any], path: Path, made: str = "measure") -> None:
    """Write a device file, with comments that explain its numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    comments = dict(COMMENTS)
    for part, assumed in ASSUMED.items():
        comments |= {} if node[part] else assumed
    parts = []
    for key, value in node.items():
        flow = None if isinstance(value, dict) else False  # one line per table of sizes
        text = yaml.safe_dump({key: value}, sort_keys=False, default_flow_style=flow, width=120)
        first, newline, rest = text.partition("\n")
        parts.append(f"{first}  # {comments[key]}{newline}{rest}")
    path.write_text(f"{MADE}{made}.\n" + "".join(parts), encoding="utf-8")


class ComparedExchange(NamedTuple):
    """The measured time of an exchange and the one predicted for it."""

    title: str
    workers: int
    exchange_seconds: float  # predicted
    measured_exchange_seconds: float

    @property
    def ratio(self) -> float:
        """Return the measured over the predicted seconds of the exchange."""
        return self.measured_exchange_seconds / self.exchange_seconds


def compare(path: str, network: str | None = None, latency: str | None = None) -> ComparedExchange:
    """Return the exchange of a run on hosts with one worker each, compared with its prediction.

    What was sent is what the result counted, in a mean step. The link is `network`, by default the
    one that the result names. Raises ConfigError for a run that has no such exchange.
    """
    file = Path(path) if Path(path).is_file() else Path(path) / "result.json"
    if not file.is_file():
        raise ConfigError(f"{path}: there is no result.json in it; type a run's directory")
    try:
        result = read_run(file.parent).result
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; type a run's directory") from error
    if not result.seconds or result.workers is None or result.workers < 2:
        raise ConfigError(
            f"{path}: a run of one worker, or of virtual ones, has no exchange; type one with "
            "several processes"
        )
    if "hidden_exchange" in result.seconds and phase_seconds(result, "hidden_exchange"):
        raise ConfigError(
            f"{path}: a part of its exchange passed under the computation (trainer.overlap, "
            "trainer.double_buffering, estimator.delay), and whole exchanges are predicted; type a "
            "run without"
        )
    if not (messages := messages_of(result)):
        raise ConfigError(f"{path}: it has counted no exchange; type a run with one or more steps")
    between = _link(result.network, network, latency, path)
    # A node of a hierarchical method is made up of hosts, each with its own link to other nodes.
    size = network_of(result, between).workers_per_node
    cluster = Cluster(between, between, size).at(size * between.bits_per_second)
    return ComparedExchange(
        title=result.experiment or Path(path).name,
        workers=result.workers,
        exchange_seconds=exchange_seconds(messages, cluster.network(result.workers)),
        measured_exchange_seconds=phase_seconds(result, "exchange"),
    )


def _link(
    measured: RecordedNetwork | None, network: str | None, latency: str | None, path: str
) -> Link:
    if network is not None:
        return read_link("network", network, latency)
    if measured and measured.emulated:
        if latency is not None:
            raise ConfigError(
                f"latency={latency}: the run's emulated link has its own latency; to replace it, "
                "type network=1gbit too"
            )
        emulated = measured.model_dump()
        return emulated_link(emulated["bandwidth"], emulated["latency"])
    if measured and measured.link:
        return read_link("network", measured.link, latency)
    raise ConfigError(f"{path}: its result names no link; type network=1gbit")
