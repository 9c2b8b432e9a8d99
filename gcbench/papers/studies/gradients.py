"""Gradients of real training for studies, and the bits and errors of every tensor of a network."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcbench.core.codecs.packing import shannon_bits
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, State, Step, flatten, offsets_of, vnmse
from gcbench.core.errors import ConfigError
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.entropy_coded import Exponents
from gcbench.core.wrappers.virtual import aggregate
from gcbench.papers.studies.study import Row, Study, compressor
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.naming import run_directory
from gcbench.runner.config.resolve import resolve
from gcbench.runner.launch.same import find_same_run
from gcbench.runner.launch.start import start
from gcbench.runner.records.gradients import Recorded, read_gradients


class Coded(NamedTuple):
    """The codes of some rows, and the values that they decode to."""

    codes: Tensor  # [w, n] uint8
    values: Tensor  # [w, n] float32


def code(codec: Bucketed, rows: Tensor, segments: tuple[int, ...], number: int = 0) -> Coded:
    """Return the codes of `[w, n]` rows, and the values that these decode to.

    Each row holds tensors of the sizes `segments`, end to end. `number` is the step, which
    determines the random draws.
    """
    sizes = {str(i): n for i, n in enumerate(segments)}
    step = Step(number, 1, range(len(rows)), offsets_of(sizes))
    noise = step.noise("codec", sizes, rows.device)
    out = torch.zeros_like(rows)
    codec.decode_add(codec.encode(rows, segments, noise), segments, out)
    codes = codec.codes_by(rows, segments, codec.fit_buckets(rows, segments), noise)
    return Coded(codes, out)


TRAINING = {"model", "dataset", "steps", "every", "window"}  # settings of a run made for a study


@dataclass(frozen=True, kw_only=True)
class OnRealGradients(Study, ABC):
    """A study of the gradients of real training.

    By default two virtual workers with 64 images each train `model` in full precision (learning
    rate 0.1, momentum 0.9, weight decay 5e-4, seed 1), which takes one core about three minutes.
    The run is kept in the outputs like any other, and studies with the same settings share it.
    """

    # A file that trainer.record_gradients wrote, or a folder of such files; null: train first.
    recorded: str | None = None
    model: str = "resnet20"
    dataset: str = "cifar10"
    steps: int = 220  # the length of the training
    every: int = 100  # steps from the start of one recorded window to the next; the first is 0
    window: int = 20  # consecutive steps that are recorded

    def __post_init__(self) -> None:
        """Raise ConfigError for settings of a training run beside gradients of another one."""
        for field in fields(self) if self.recorded is not None else ():
            typed = getattr(self, field.name)
            if field.name in TRAINING and typed != field.default:
                raise ConfigError(
                    f"{field.name}={typed} has no effect with recorded={self.recorded}; type only "
                    "one of them"
                )

    def settings(self) -> dict[str, Any]:
        """Return the study's settings, with those of the run that recorded the gradients.

        The settings of a run that was made for the study are already among the study's own.
        """
        settings = super().settings()
        if self.recorded is None:
            return settings
        return {
            **{k: v for k, v in settings.items() if k not in TRAINING},
            **read_gradients(self._files()[0]).config,
        }

    def windows(self) -> list[list[Recorded]]:
        """Return the recorded steps, grouped into windows of consecutive steps."""
        windows: list[list[Recorded]] = []
        for recorded in map(read_gradients, self._files()):
            if windows and recorded.step == windows[-1][-1].step + 1:
                windows[-1].append(recorded)
            else:
                windows.append([recorded])
        return windows

    def moments(self) -> list[Recorded]:
        """Return the first step of every window."""
        return [window[0] for window in self.windows()]

    def _files(self) -> list[Path]:
        if self.recorded is None:
            return sorted((self._train() / "gradients").glob("step-*.pt"))
        path = Path(self.recorded)
        files = [path] if path.is_file() else sorted(path.glob("step-*.pt"))
        if not files:
            raise ConfigError(
                f"recorded={self.recorded}: no step-*.pt there; type what trainer.record_gradients "
                "wrote, or null"
            )
        return files

    def _train(self) -> Path:
        """Train, unless that was done before, and return the run's directory."""
        composed = compose_overrides(self._overrides())
        config, default = resolve(composed), Path(run_directory(composed))
        directory = find_same_run(config, default) or default
        start(config, str(directory), in_sweep=True)
        return directory

    def _overrides(self) -> list[str]:
        recorded = [step for step in range(self.steps) if step % self.every < self.window]
        return [
            f"model={self.model}",
            f"dataset={self.dataset}",
            "compressor=none",
            "optimizer.lr=0.1",
            "optimizer.momentum=0.9",
            "optimizer.weight_decay=5e-4",
            "schedule=constant",
            "trainer.workers=2",
            "trainer.batch_size=64",
            f"trainer.max_steps={self.steps}",
            f"trainer.record_gradients=[{','.join(map(str, recorded))}]",
            "trainer.launcher=virtual",
            "trainer.device=cpu",
            "trainer.threads=1",
            "trainer.eval_every=null",
            "trainer.error_every=null",
            "trainer.checkpoint_minutes=null",
            "logger.mode=disabled",
            f"outputs={self.outputs}",
        ]


METHODS = ("qsgd bits=4 min_size=0", "orq level_count=5", "powersgd rank=2", "top_k", "sign_norm")


@dataclass(frozen=True, kw_only=True)
class Layers(OnRealGradients):
    """Bits and error of each tensor of recorded gradients, for methods whose scope is a tensor or a
    bucket of it.

    Compresses each tensor by itself over the recorded steps of the last window, in order and with
    its residual. `bits_a_step` is the payload that a worker sends for the tensor; `relative` is
    |update - mean gradient| / |mean gradient| in 2-norms, as a root mean square over the steps. A
    row is a method as typed after compressor=. Takes some seconds, and three minutes if no
    gradients are recorded yet.
    """

    # As typed after compressor=; null: qsgd, orq, powersgd, top_k and sign_norm.
    methods: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a list without methods, and for settings of another run."""
        super().__post_init__()
        if "" in (self.methods or ()):
            raise ConfigError(
                "methods=[]: type methods as after compressor=, as in methods=[top_k], or null"
            )

    def rows(self) -> Iterator[Row]:
        methods = {sentence: _read(sentence) for sentence in self.methods or METHODS}
        window = self.windows()[-1]
        for sentence, method in methods.items():
            yield {
                "row": sentence,
                "layers": [_layer(method, window, name) for name in window[0].names],
            }


def _read(sentence: str) -> Compressor:
    """Return the method of a sentence; raise ConfigError if it needs all tensors at once."""
    name, *knobs = sentence.split()
    method = compressor(name, *knobs)
    if method.properties.scope == "global":
        raise ConfigError(
            f"methods=[{sentence}]: it compresses all tensors together, and each by itself would "
            "be another method; type methods whose scope is a tensor or a bucket of it"
        )
    return method


def _layer(method: Compressor, window: Sequence[Recorded], name: str) -> dict[str, Any]:
    state, bits, errors = State(), 0.0, []
    for moment in window:
        grads = {name: moment.tensors()[name]}
        comm = Comm(len(moment.gradients))
        out = aggregate(method, grads, number=moment.step, state=state, comm=comm)
        mean = {name: grads[name].mean(0, keepdim=True)}
        errors.append(float(vnmse(flatten(out.update), flatten(mean))))
        bits += comm.meter.sent_bits[0]
        state = out.state
    return {
        "name": name,
        "values": int(window[0].tensors()[name][0].numel()),
        "bits_a_step": bits / len(window),
        "relative": (sum(errors) / len(errors)) ** 0.5,
    }


@dataclass(frozen=True, kw_only=True)
class ExponentBits(OnRealGradients):
    """The bits that lossless compression of gradients saves, by tensor and step: ZipCCL, 2026.

    Sends the gradients of all recorded windows by `exponents` in fp32 and in bf16: exponents
    in an entropy code, signs and mantissas as they are. `bits` is what a worker sends per value, a
    mean over the windows' first steps, and `saved` the share of 32 or 16 bits that this is less;
    `entropy` is that of an exponent in one tensor, of which `least` and `most` are the lowest and
    the highest. `bits_by_step` and the tensors' `entropy_by_step` have every step. Takes some
    seconds, and three minutes if no gradients are recorded yet.
    """

    def rows(self) -> Iterator[Row]:
        moments = self.moments()
        for form, width in (("fp32", 32), ("bf16", 16)):
            method = compressor("exponents", f"format={form}")
            by_step = [_bits_a_value(method, moment) for moment in moments]
            yield {
                "row": f"{form}, whole gradient",
                "bits": sum(by_step) / len(by_step),
                "saved": 1 - sum(by_step) / len(by_step) / width,
                "step": [moment.step for moment in moments],
                "bits_by_step": by_step,
            }
        for name, values in moments[0].tensors().items():
            entropies = [_entropy_of_exponents(moment.tensors()[name]) for moment in moments]
            yield {
                "row": name,
                "values": values[0].numel(),
                "entropy": sum(entropies) / len(entropies),
                "least": min(entropies),
                "most": max(entropies),
                "entropy_by_step": entropies,
            }


def _bits_a_value(method: Compressor, moment: Recorded) -> float:
    comm = Comm(len(moment.gradients))
    aggregate(method, moment.tensors(), number=moment.step, comm=comm)
    return sum(comm.meter.sent_bits) / moment.gradients.numel()


def _entropy_of_exponents(gradients: Tensor) -> float:
    """Return the bits of an exponent, of all workers' values of a tensor."""
    exponents, _ = Exponents().split(gradients.reshape(1, -1))
    return float(shannon_bits(exponents, 256)) / gradients.numel()
