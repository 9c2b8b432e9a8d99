"""Gradients of real training for studies: recorded ones, or those of a short training of a study's own."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcbench.config import ConfigError, compose_words, resolve, run_directory
from gcbench.launch.same import same_run
from gcbench.launch.start import start
from gcbench.records.gradients import Recorded, read_gradients
from gcbench.studies.study import Study

TRAINING = {"model", "dataset", "steps", "every", "window"}  # the settings of a study's own


@dataclass(frozen=True, kw_only=True)
class OnRealGradients(Study, ABC):
    """By default two virtual workers with 64 images each train `model` in full precision (learning rate 0.1, momentum 0.9,
    weight decay 5e-4, seed 1), which takes one core about three minutes; the run lies in the outputs like any other, and
    studies with the same settings share it."""

    recorded: str | None = (
        None  # a file that trainer.record_gradients wrote, or a folder of such; null: train here
    )
    model: str = "resnet20"
    dataset: str = "cifar10"
    steps: int = 220  # of the training
    every: int = (
        100  # steps from one window of recorded ones to the next; the first begins at step 0
    )
    window: int = 20  # steps recorded after one another

    def settings(self) -> dict[str, Any]:
        """With those of the run that recorded the gradients, if it was not of the study's making."""
        found = super().settings()
        if self.recorded is None:
            return found
        return {
            **{k: v for k, v in found.items() if k not in TRAINING},
            **read_gradients(self._files()[0]).config,
        }

    def windows(self) -> list[list[Recorded]]:
        """Runs of steps that follow each other."""
        found: list[list[Recorded]] = []
        for recorded in map(read_gradients, self._files()):
            if found and recorded.step == found[-1][-1].step + 1:
                found[-1].append(recorded)
            else:
                found.append([recorded])
        return found

    def moments(self) -> list[Recorded]:
        """The first of every window."""
        return [window[0] for window in self.windows()]

    def _files(self) -> list[Path]:
        if self.recorded is None:
            return sorted((self._trained() / "gradients").glob("step-*.pt"))
        path = Path(self.recorded)
        files = [path] if path.is_file() else sorted(path.glob("step-*.pt"))
        if not files:
            raise ConfigError(
                f"recorded={self.recorded}: no step-*.pt there; type what trainer.record_gradients wrote, or null"
            )
        return files

    def _trained(self) -> Path:
        """The directory of the run, which is found again where it was finished before, under whatever name."""
        composed = compose_words(self._words())
        config, own = resolve(composed), Path(run_directory(composed))
        directory = same_run(config, own) or own
        start(config, str(directory), in_sweep=True)
        return directory

    def _words(self) -> list[str]:
        kept = [step for step in range(self.steps) if step % self.every < self.window]
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
            f"trainer.record_gradients=[{','.join(map(str, kept))}]",
            "trainer.launcher=virtual",
            "trainer.device=cpu",
            "trainer.threads=1",
            "trainer.eval_every=null",
            "trainer.error_every=null",
            "trainer.checkpoint_minutes=null",
            "logger.mode=disabled",
            f"outputs={self.outputs}",
        ]
