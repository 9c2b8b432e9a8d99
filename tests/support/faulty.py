"""A model that causes a fault in one step of one worker process, once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

LONG = f"the beginning, {'x' * 2_000_000}, the end"
SURROGATE = "a path of other bytes: \udcff"
TERMINAL = "\x1b[2J\x1b]0;a title\x07"


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Faulty(nn.Module):
    """A network that fails at training step `at` of process `rank`, unless file `spent` exists."""

    def __init__(
        self,
        fault: str,
        at: int,
        rank: int,
        spent: str,
        shape: list[int] | None = None,
        outputs: int = 10,
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, outputs)
        )
        self.fault, self.at, self.spent = fault, at, Path(spent)
        self.mine = int(os.environ.get("RANK", 0)) == rank
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            if self.mine and self.forwards == self.at and not self.spent.exists():
                self.spent.touch()
                self.strike()
            self.forwards += 1
        out: Tensor = self.layers(x)
        return out

    def strike(self) -> None:
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "kill parent":
            os.kill(os.getppid(), signal.SIGKILL)
        if self.fault == "kill all":
            os.killpg(0, signal.SIGKILL)
        if self.fault == "raise":
            raise RuntimeError("a fault of the model")
        if self.fault == "raise odd text":
            raise RuntimeError(f"{SURROGATE} {TERMINAL} {LONG}")
        if self.fault == "raise mute":
            raise Mute
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.fault.startswith("SIG"):
            signal.raise_signal(signal.Signals[self.fault])
        if self.fault == "drift":
            with torch.no_grad():
                self.layers[1].bias[3] += 1e-6
        if self.fault == "nan gradient":
            self.layers[1].bias.register_hook(
                lambda grad: grad * torch.nan if not self.forwards > self.at + 1 else grad
            )
