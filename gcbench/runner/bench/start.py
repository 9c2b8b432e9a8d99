"""One benchmark, from its config to a table and a JSON file."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from gcbench.core.codecs.kernels import backend_in_use, choose_codec_backend, use_backend
from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.runner.bench.local import InputOf, Shapes, draw_input, measure, one_matrix, read_input
from gcbench.runner.bench.network import measure_here
from gcbench.runner.bench.timing import Row
from gcbench.runner.console import TextTable, console, print_table
from gcbench.runner.launch.instantiate import make_compressor, parameter_shapes
from gcbench.runner.launch.local import run_processes
from gcbench.runner.launch.meeting import security_notice
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.launch.plan import Machine
from gcbench.runner.records.environment import describe_environment
from gcbench.runner.settings.config import BenchConfig, Node
from gcbench.runner.settings.groups import BenchSettings

log = logging.getLogger("gcbench")


def bench(config: BenchConfig, directory: str) -> None:
    """Measure, print the results, and write bench.json to `directory`.

    Processes that torchrun or scripts/netlab started all call this, and time a step between them.
    Raises ConfigError for keys that contradict each other, or that this machine cannot run.
    """
    together = _started_together(config.workers)
    first = not together or os.environ["RANK"] == "0"
    if together and first:
        everywhere, local = Machine.detect().started_processes("torchrun")
        if notice := security_notice(everywhere == local):
            log.warning(notice)
    device = _device(config.device)
    _check_gpus(config.workers, together, device)
    compiler = Machine.detect().compiler
    backend = choose_codec_backend(config.codec_backend, device.type, compiler, "codec_backend")
    _refuse_idle_inputs(config, together)
    torch.set_num_threads(config.threads)
    use_backend(backend)
    keep_freed_memory()
    compressor = make_compressor(config.compressor)
    sources = _sources(config)
    inputs = [source(device, 0) for of_size in sources for source in of_size] if first else []
    rows = [row for x in inputs for row in measure(compressor, x, config.rounds)]
    # With draws=[] only steps between processes are measured, on normal draws.
    of_last_size = sources[-1] or [partial(draw_input, "normal", _shapes(config)[-1])]
    network = [
        row
        for processes in ([None] if together else config.workers)
        for row in _between(config, compressor, of_last_size[0], device, processes)
    ]
    if not first:
        return
    output = console()
    _print(config, rows, network, device, output)
    path = Path(directory) / "bench.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "config": config.as_dict(),
        **describe_environment().model_dump(),
        "device": _name(device),
        "local": rows,
        "network": network,
    }
    path.write_text(json.dumps(content, indent=1))
    output.print(Text(str(path), style="dim"), soft_wrap=True)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: there is no CUDA device here; type device=cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _check_gpus(workers: list[int], together: bool, device: torch.device) -> None:
    processes = int(os.environ["LOCAL_WORLD_SIZE"]) if together else max(workers, default=0)
    if device.type == "cuda" and processes > (gpus := torch.cuda.device_count()):
        raise ConfigError(
            f"workers={workers}: each process needs a GPU of its own, and there are {gpus} for "
            f"{processes}; type workers=[{gpus}], or device=cpu"
        )


def _refuse_idle_inputs(config: BenchConfig, together: bool) -> None:
    """Refuse a benchmark of nothing, and changed keys that have no effect beside another one."""
    known = {**config.as_dict(), "model": config.choices.get("model")}
    usual = {"model": None, **BenchSettings().model_dump()}
    for taker, taken in (("recorded", ("draws", "model", "sizes")), ("model", ("sizes",))):
        for key in taken:
            if known[taker] and known[key] != usual[key]:
                raise ConfigError(
                    f"{key}={format_value(known[key])} has no effect with {taker}={known[taker]}; "
                    "type only one of them"
                )
    model = known["model"]
    left_open = _left_open_by(config.model.as_dict()) if config.model else ()
    for key in ("shape", "classes", "vocabulary"):
        if key not in left_open and known[key] != usual[key]:
            beside = f"with model={model}" if model else "without model=NAME"
            raise ConfigError(
                f"{key}={format_value(known[key])} has no effect {beside}; leave it out"
            )
    if not (together or config.workers or config.recorded or config.draws):
        raise ConfigError("draws=[] workers=[]: nothing is measured; type draws=[normal]")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "cpu"


def _shapes(config: BenchConfig) -> list[Shapes]:
    """Return the shapes of a model's tensors, or of a matrix for each of the sizes."""
    if config.model is None:
        return [one_matrix(int(n)) for n in config.sizes]
    node = config.model.as_dict()
    outputs = config.vocabulary if "vocabulary" in node else config.classes
    return [parameter_shapes(node, config.shape, outputs)]


def _left_open_by(model: Node) -> tuple[str, ...]:
    """Return the keys that a model takes from a data set, and a benchmark from its own keys."""
    return ("vocabulary",) if "vocabulary" in model else ("shape", "classes")


def _sources(config: BenchConfig) -> list[list[InputOf]]:
    """Return the sources of gradients, in one list per size."""
    if config.recorded:
        file = Path(config.recorded)
        if not file.is_file():
            raise ConfigError(
                f"recorded={file}: no such file; type one that trainer.record_gradients wrote"
            )
        return [[partial(read_input, file)]]
    return [[partial(draw_input, draw, of) for draw in config.draws] for of in _shapes(config)]


def _started_together(workers: list[int]) -> bool:
    """Return whether this is one of several processes that torchrun or netlab started."""
    if not Machine.detect().under_torchrun:
        return False
    started = int(os.environ["WORLD_SIZE"])
    if workers not in ([], [started]):
        raise ConfigError(
            f"workers={workers}, but torchrun started {started} processes; type workers=[{started}]"
        )
    return True


def _between(
    config: BenchConfig,
    compressor: Compressor,
    input_of: InputOf,
    device: torch.device,
    processes: int | None,
) -> list[Row]:
    """Return the rows of steps between `processes` new processes; None: between those running."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "rows.json"
        args = (
            compressor,
            input_of,
            config.rounds,
            config.threads,
            config.codec_backend,
            device.type,
            str(answer),
        )
        if processes is None:
            measure_here(*args)
        else:
            run_processes(measure_here, args, processes)
        # Only the first process has written it.
        return json.loads(answer.read_text()) if answer.exists() else []


def _print(
    config: BenchConfig, rows: list[Row], network: list[Row], device: torch.device, output: Console
) -> None:
    name = config.choices["compressor"]
    local = [
        [
            row["part"],
            row["input"],
            f"{row['values']:,}",
            f"{row['milliseconds']:.2f}",
            f"{row['gb_per_second']:.2f}",
            f"{row['of_memcpy']:.3f}",
        ]
        for row in rows
    ]
    headings = ["part", "input", "values", "ms", "GB/s of fp32", "x memcpy"]
    title = f"{name}, {backend_in_use()} codecs"
    notes = [
        f"CPU time of {row['part']}, {row['input']}, {row['values']:,} values, on "
        f"{config.threads} threads: {row['cpu_of_one_thread']:.2f} x that on one."
        for row in rows
        if row.get("cpu_of_one_thread")
    ]
    print_table(TextTable(headings, local, left=(0, 1), title=title, notes=notes), output)
    if not network:
        return
    between = [
        [
            row["what"].replace("method", name),
            str(row["workers"]),
            f"{row['values']:,}",
            f"{row['milliseconds']:.2f}",
            "" if row["exchange_milliseconds"] is None else f"{row['exchange_milliseconds']:.2f}",
            f"{row['of_dense']:.2f}",
        ]
        for row in network
    ]
    headings = ["step of", "processes", "values", "ms", "of which exchange", "x dense"]
    title = "between GPUs, by NCCL" if device.type == "cuda" else "between gloo processes"
    print_table(TextTable(headings, between, title=title), output)
