"""This machine as a device: seconds of every method's coding and of models, on one thread.

They are seconds of the processor, so that what others do on it counts little.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import date
from statistics import median
from typing import Any

import torch

from gcbench.core.codecs.kernels import choose_codec_backend, use_backend
from gcbench.core.conf import method_files
from gcbench.core.errors import ConfigError, as_known, near
from gcbench.core.method_files import make_compressor, read_method
from gcbench.runner.bench.local import draw_input, measure, one_matrix
from gcbench.runner.bench.timing import UNTIMED, seconds
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.data_facts import dataset_of, facts_of, window_of
from gcbench.runner.launch.instantiate import make_model
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.launch.plan import Machine
from gcbench.runner.predict.arguments import ThisMachine
from gcbench.runner.predict.devices import sources_of_codecs
from gcbench.runner.predict.measure import PARTS
from gcbench.runner.records.environment import describe_machine

log = logging.getLogger("gcbench")
CPU = torch.device("cpu")
TURNS = 3  # over all that is timed, of whose medians the least counts
MODELS = {"mlp": (16, 64), "resnet20": (16, 64), "resnet18": (4, 16), "gpt_bytes": (16, 64)}


def measure_machine(arguments: ThisMachine) -> dict[str, Any]:
    """Return the content of a device file, measured here; raise ConfigError for unknown methods."""
    names = [*method_files()]
    asked = [as_known(name, [*names, "all"]) for name in arguments.compressor]
    if unknown := [name for name in asked if name not in (*names, "all")]:
        raise ConfigError(
            f"compressor={unknown[0]}: there is no such method; type "
            f"{near(unknown[0], names) or 'all, or some of ' + ', '.join(names)}"
        )
    machine = describe_machine()
    torch.set_num_threads(1)
    use_backend(choose_codec_backend("auto", "cpu", Machine.detect().compiler, "codec_backend"))
    keep_freed_memory()
    methods = names if "all" in asked else asked
    codecs: dict[str, dict[str, Least]] = {}
    models: dict[str, Least] = {}
    copies, shares = [], []
    for turn in range(1, TURNS + 1):
        for size in sorted(arguments.sizes):  # the small ones first: they say soon what fails
            log.info("turn %d of %d: coding of %s values", turn, TURNS, f"{size:,}")
            for name in methods:
                for row in _rows(name, size, arguments.rounds):
                    if size == max(arguments.sizes):  # smaller ones are in the cache
                        copies.append(1e9 * row["memcpy_gb_per_second"])
                    if part := PARTS.get(row["part"]):
                        table = codecs.setdefault(name, {}).setdefault(part, Least())
                        table.add(row["values"], row["milliseconds"] / 1e3)
        log.info("turn %d of %d: %s", turn, TURNS, ", ".join(MODELS))
        for model, sizes in MODELS.items():
            for size in sizes:
                whole, backward = _step(model, size, arguments.rounds)
                models.setdefault(model, Least()).add(size, whole)
                shares.append(backward / whole)
    capability = str(machine.cpu_capability)
    return {
        "title": arguments.title or f"one core of {machine.cpu}, code for {capability}",
        "processor": capability,
        "measured": date.today().isoformat(),
        "sources": sources_of_codecs(),
        "copy_bytes_per_second": round(max(copies)),
        "backward_share": round(median(shares), 3),
        "codecs": {
            name: {part: table.rounded for part, table in codecs[name].items()}
            for name in sorted(codecs)
        },
        "models": {name: {"seconds": table.rounded} for name, table in models.items()},
    }


class Least(dict[int, float]):
    """The least seconds by size: what others do on the machine only adds to them."""

    def add(self, size: int, seconds: float) -> None:
        self[size] = min(seconds, self.get(size, seconds))

    @property
    def rounded(self) -> dict[int, float]:
        return {size: float(f"{taken:.4g}") for size, taken in sorted(self.items())}


def _rows(name: str, values: int, rounds: int) -> Iterator[Mapping[str, Any]]:
    compressor = make_compressor(read_method(name)["compressor"], quiet=True)
    return measure(compressor, draw_input("normal", one_matrix(values), CPU), rounds)


def _step(model: str, batch_size: int, rounds: int) -> tuple[float, float]:
    """Return the median seconds of forward, backward and update, and of the backward pass alone."""
    dataset = dataset_of(model)
    facts = facts_of(model, dataset)
    node = resolve(compose_overrides([f"model={model}", f"dataset={dataset}"])).model.as_dict()
    module = make_model(node, facts.sample, facts.outputs)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-9, momentum=0.9)
    shape = (batch_size, *(facts.sample or [window_of(model)]))
    inputs = torch.randn(shape) if facts.sample else torch.randint(facts.outputs, shape)
    losses: list[torch.Tensor] = []

    def forward() -> None:
        losses.append(module(inputs).float().square().mean())

    taken = []
    for _ in range(UNTIMED + rounds):
        optimizer.zero_grad()
        parts = (forward, lambda: losses.pop().backward(), optimizer.step)
        taken.append([seconds(part, CPU, of_processor=True) for part in parts])
    return (
        median(sum(one) for one in taken[UNTIMED:]),
        median(backward for _, backward, _ in taken[UNTIMED:]),
    )
