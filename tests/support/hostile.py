"""Messages and files with which an attacker may try to make a run execute code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from gloo_pool import Process


class Exploit:
    """An object that creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def gather_with_a_stranger(process: Process, mark: Path) -> str:
    """Return the outcome of a gather in which the second process is a stranger with a pickle."""
    if process.rank == 0:
        try:
            return repr(process.control.gather("honest"))
        except ValueError as error:
            return type(error).__name__
    attack = torch.frombuffer(bytearray(pickle.dumps(Exploit(mark))), dtype=torch.uint8)
    process.control.gather_tensors(torch.tensor([len(attack)]))
    process.control.gather_tensors(attack)
    return "sent"
