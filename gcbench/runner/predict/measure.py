"""A device's profile from benchmarks and timed runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from gcbench.core.errors import ConfigError
from gcbench.runner.differences import flat_differences, format_differences
from gcbench.runner.identity import Flat, leaves
from gcbench.runner.predict.recorded import COMPUTATION, phase_seconds
from gcbench.runner.records.files import read_json
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun, find_runs

log = logging.getLogger("gcbench")
COPY_BYTES_PER_SECOND = 10**10  # assumed if there is no benchmark
BACKWARD_SHARE = 0.667  # assumed if there is no run
PARTS = {"aggregate": "aggregate_seconds", "decode-and-add": "decode_seconds"}
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
    return {"device": bench.get("device"), **leaves(settings)}


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
