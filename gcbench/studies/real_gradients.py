"""Gradients of real training for studies, from recorded files or from a short training run."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gcbench.config import ConfigError, compose_overrides, resolve, run_directory
from gcbench.launch.same import find_same_run
from gcbench.launch.start import start
from gcbench.records.gradients import Recorded, read_gradients
from gcbench.studies.study import Study

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
            "trainer.gpus=2",
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
