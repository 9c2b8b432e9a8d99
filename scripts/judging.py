"""What scripts/faults asks of runs: sound, equal to the bit, each fault told with its cause."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from disturbing import Fault
from loops import END_OF_LOOP
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gcbench.runner.records.metrics import BITS

CAUGHT = ("TERM", "INT", "INT+INT", "HUP", "QUIT")  # at these a run stops, with a checkpoint
# What differs between two runs of the same numbers. Digests of checkpoints do so by their times,
# and are compared with the files.
UNEQUAL = {*"started finished resumed_step git run_id id path sha256 checksum".split()}
TIMED = {*"seconds ledger peak_mib samples_per_second tokens_per_second".split()}
FACTOR, SLACK = 100, 0.1  # between two times, or two peaks of memory, on a busy machine
OF_STARTS = ("wandb", "tensorboard")  # folders of files that are named after a start
OF_ONE_START = ("run.lock", "hydra.yaml", "multirun.yaml")  # they tell a process, and folders
# Tracebacks of logging, and of the threads of W&B and TensorBoard, end no run.
OF_OTHERS = re.compile(
    r"--- Logging error ---\nTraceback.*?(?=\n\w)"
    r"|Exception in thread [^\n]*\nTraceback(?=(?:.(?!\n\w))*(?:wandb|tensorboard)/)",
    re.DOTALL,
)


def differences(one: Path, other: Path, but: Collection[str] = ()) -> list[str]:
    """Return what is unsound in two folders of runs, and what is not equal in them.

    All files are compared to the bit, times and memory within a factor; keys in `but` may differ.
    """
    alone = _older(one) ^ _older(other)  # a signal leaves a checkpoint at a step of its own
    a, b = (_gathered(_content_of(folder, {*UNEQUAL, *but}, alone)) for folder in (one, other))
    return [*unsound(one), *unsound(other)] + [
        f"{name}: {a.get(name)!r:.60} undisturbed, and {b.get(name)!r:.60}"
        for name in sorted(a.keys() | b.keys())
        if not _alike(a.get(name), b.get(name))
    ]


class Times(NamedTuple):
    """The values of one time in all lines: two are alike if their medians are."""

    values: tuple[float, ...]


def _gathered(content: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in content:
        if isinstance(value, Times):
            name = re.sub(r"\.\d+\.", ".*.", name)
            value = Times((*leaves.get(name, Times(())).values, *value.values))
        leaves[name] = value
    return leaves


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Times) and isinstance(b, Times):
        low, high = sorted((median(a.values), median(b.values)))
        return high <= FACTOR * low + SLACK
    return bool(a == b)


def _older(folder: Path) -> set[Path]:
    """Return the checkpoints before the last one of each run."""
    of_runs = [sorted(path.glob("step-*[0-9]")) for path in folder.rglob("checkpoints")]
    return {path.relative_to(folder) for steps in of_runs for path in steps[:-1]}


def _content_of(
    folder: Path, unequal: Collection[str], alone: Collection[Path]
) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.name == "checkpoints":
            yield f"{inside}, how many", len([*path.iterdir()])
        if path.name == "tensorboard":
            yield from _leaves(str(inside), _scalars(path), unequal)
        if not any(up in alone or up.name in OF_STARTS for up in (inside, *inside.parents)):
            yield f"{inside}", "a folder" if path.is_dir() else "a file"
            if path.is_file() and path.name not in OF_ONE_START:
                yield from _leaves(str(inside), _read(path), unequal)


def _read(path: Path) -> Any:
    match path.suffix:
        case ".pt":
            return torch.load(path, weights_only=True)
        case ".csv":
            return list(csv.DictReader(path.read_text().splitlines()))
        case ".json":
            return json.loads(path.read_text())
        case ".jsonl":
            return read_metrics(path.parent)
    return path.read_bytes()


def _scalars(folder: Path) -> dict[str, Any]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    # Totals come after the result: a run that is killed between them is done without.
    ends = ("bits/", "memory/", "test/best_")
    tags = [t for t in events.Tags()["scalars"] if t == BITS or not t.startswith(ends)]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


def _leaves(
    name: str, value: Any, unequal: Collection[str] = (), timed: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield every value in nested ones, with its name."""
    if isinstance(value, torch.Tensor):
        content = value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        yield name, (value.dtype, value.shape, content)
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(key, part) for key, part in items if key not in unequal]
        yield f"{name}.", len(parts)
        for key, part in parts:
            of_time = timed or key in TIMED or str(key).startswith("time/")
            yield from _leaves(f"{name}.{key}", part, unequal, of_time)
    elif timed and (number := _number(value)) is not None:
        yield name, Times((number,))
    else:
        yield name, value


def _number(value: Any) -> float | None:
    """Return a number, or that in a cell of a table; None for anything else."""
    with suppress(ValueError):
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return float(value)
    return None


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, but for one that a signal cut short."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_result(run: Path) -> dict[str, Any]:
    """Return result.json; empty if there is none."""
    path = run / "result.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def unsound(folder: Path) -> list[str]:
    """Return what is wrong with the finished runs, or the loops, in a folder, each by itself."""
    runs = [path.parent for path in folder.rglob("result.json")]
    ends = [*folder.rglob(END_OF_LOOP)]
    problems = [f"{run}: {what}" for run in runs for what in _unsound(run)]
    problems += [
        f"{path} is not finite" for path in ends if not all(map(_is_finite, _read(path)["models"]))
    ]
    return problems if runs or ends else [f"{folder}: nothing is finished"]


def _unsound(run: Path) -> Iterator[str]:
    result = read_result(run)
    if result["status"] != "done":
        yield f"status {result['status']}"
        return
    trainer, end = result["config"]["trainer"], _checkpoint(result)
    if result["steps"] != trainer["max_steps"]:
        yield f"done after {result['steps']} steps of {trainer['max_steps']}"
    recorded = [f"gradients/step-{step:06}.pt" for step in trainer["record_gradients"] or ()]
    of_all = ("start.json", ".hydra/config.yaml", "metrics.jsonl", "weights.pt", end)
    yield from (f"no {name}" for name in (*of_all, *recorded) if not (run / name).exists())
    for checkpoint in (run / "checkpoints").glob("step-*[0-9]"):
        yield from _damages(checkpoint)
    if (weights := run / "weights.pt").exists() and not _is_finite(_read(weights)):
        yield "weights.pt is not finite"
    yield from _wrong_times(run)


def _is_finite(weights: dict[str, torch.Tensor]) -> bool:
    return all(bool(value.isfinite().all()) for value in weights.values())


def _checkpoint(result: dict[str, Any]) -> str:
    return f"checkpoints/step-{result['steps']:08}"


def _damages(checkpoint: Path) -> Iterator[str]:
    for name, digest in _read(checkpoint / "manifest.json")["sha256"].items():
        path = checkpoint / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"{checkpoint.name}/{name} is not what its manifest says"


def _wrong_times(run: Path) -> Iterator[str]:
    content = {"result": read_result(run), "metrics": read_metrics(run)}
    for name, value in _leaves(run.name, content):
        if isinstance(value, Times) and not 0 <= value.values[0] < math.inf:
            yield f"{name} is {value.values[0]}"


class Seen(NamedTuple):
    """What a command finds in the folder of its run."""

    result: dict[str, Any]
    logged: int  # the last step in metrics.jsonl

    @classmethod
    def at(cls, run: Path) -> Seen:
        return cls(read_result(run), max((line["step"] for line in read_metrics(run)), default=0))


class Ending(NamedTuple):
    """How a disturbed command ended, and what it had found."""

    code: int | None
    said: str
    found: Seen


def unexplained(fault: Fault, victim: str, ending: Ending, run: Path) -> str | None:
    """Return what is wrong with how a disturbed command ended, or None.

    `run` is the folder of a single run; that of a sweep or of a loop has no result of its own.
    """
    now = Seen.at(run)
    status, told = now.result.get("status"), f"{now.result.get('reason')} {ending.said}"
    if "Traceback" in OF_OTHERS.sub("", told):
        return "a traceback"
    if wrong := next(_wrong_times(run), None):
        return wrong
    if status == "done" or ending.code == 0:
        return next(iter(unsound(run)), None)
    if fault.kind == "disk":
        cause = os.strerror(fault.error)
        return None if cause in told else f"no word of {cause}"
    last = fault.what.split("+")[-1]
    if fault.kind in ("clock", "link") or last == "CONT":
        return f"it ended with {ending.code} and status {status}"
    number = signal.Signals[f"SIG{last}"]
    if fault.what in CAUGHT:
        return _lost_by_stop(ending, now, run, number, fault.what)
    if victim.startswith("worker"):
        expected = f"{victim}: killed by SIG{last}", f"{victim} failed: killed by SIG{last}"
        return None if any(one in told for one in expected) else f"no word of {expected[0]}"
    if ending.code != -number:
        return f"exit code {ending.code}"
    # Workers whose parent was killed stop with a checkpoint; of all, nobody is left to write.
    if now.result != ending.found.result and (victim == "all" or status != "interrupted"):
        return f"status {status}, written by a run that was killed"
    return None


def _lost_by_stop(
    ending: Ending, now: Seen, run: Path, number: signal.Signals, sent: str
) -> str | None:
    """Return what a run did not keep that was asked to stop, or None."""
    if ending.code not in (-number, 130):
        return f"exit code {ending.code}"
    if now.result.get("status") != "interrupted" or sent == "INT+INT":
        return None
    if now.result["steps"]:
        checkpoint = run / _checkpoint(now.result)
        return None if checkpoint.exists() else f"interrupted without {checkpoint.name}"
    if now.logged > ending.found.logged:
        return f"interrupted after step {now.logged}, without a checkpoint"
    return None
