"""A ladder of models and workers: a table whose rows are each method at every size and number.

Training lasts 20 tokens a parameter (Hoffmann et al., 2022), a single epoch. The whole batch grows
as the root of the tokens, as critical batch sizes do (Zhang et al., 2024), and does not depend on
the number of workers, which share it. A method's learning rate, tuned at one size, is carried to
the others over their width (Yang et al., 2022) and times the root of their batch, as is right for
Adam (Malladi et al., 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from gcbench.config import Config, ConfigError
from gcbench.config.directory import CHECKED, Texts

RATE = "optimizer.lr"


@dataclass(frozen=True, config=CHECKED)
class Size:
    """A size of the model, with its training."""

    parameters: int
    width: int
    windows: int  # in a step of all workers together
    steps: int


@dataclass(frozen=True, config=CHECKED)
class HeldOut:
    """The cell that is predicted from the others, and the rows that run there."""

    size: str
    workers: int
    rows: Texts


@dataclass(frozen=True, config=CHECKED)
class Ladder:
    """The sizes and numbers of workers of a table; its first row is the dense one.

    The dense row runs with one worker only, as more of them compute the same.
    """

    context: int  # tokens in a window
    sizes: Mapping[str, Size]
    workers: tuple[int, ...]
    tuned: tuple[str, int]  # the size, and the workers, of the rows as they stand in the file
    held_out: HeldOut

    def place(self, size: str, workers: int) -> tuple[int, int]:
        """Return the parameters and workers of a cell."""
        return self.sizes[size].parameters, workers

    def rows(self, nodes: Sequence[Config], table: str, path: Path) -> list[Config]:
        """Return the table's rows, the smallest size first; `nodes` are those in its file.

        A node's `workers`, a list, replaces those of the ladder.
        """
        for name in (self.tuned[0], self.held_out.size):
            if name not in self.sizes:
                raise ConfigError(f"{path}: there is no size {name}; type {', '.join(self.sizes)}")
        return [
            self._row(node, table, path, name, workers)
            for name in self.sizes
            for node in nodes
            for workers in self._workers(node, name, node is nodes[0])
        ]

    def _workers(self, node: Config, size: str, dense: bool) -> Iterator[int]:
        if size != self.held_out.size:
            workers = (1,) if dense else node.get("workers", self.workers)
            yield from (each for each in workers if each <= self.sizes[size].windows)
        elif node["name"] in self.held_out.rows:
            yield 1 if dense else self.held_out.workers

    def _row(self, node: Config, table: str, path: Path, name: str, workers: int) -> Config:
        size, tuned = self.sizes[name], self.sizes[self.tuned[0]]
        if size.windows % workers:
            raise ConfigError(
                f"{path}: {workers} workers cannot share {size.windows} windows; type a multiple"
            )
        settings: dict[str, Any] = {
            "model.width": size.width,
            "dataset.size": size.windows * (size.steps * self.context + 1),
            "trainer.gpus": workers,
            "trainer.batch_size": size.windows // workers,
        }
        if size != tuned:  # at whose own rate the row shows what else was tried
            factor = tuned.width / size.width * sqrt(size.windows / tuned.windows)
            settings[RATE] = float(f"{node['runs'][RATE] * factor:.3g}")
        return {
            "experiment": f"{table}/{node['name']}",
            "name": f"{node['name']}_{name}_{workers}",
            "title": node["title"],
            "group": f"{name}, K = {workers}",
            "with": settings,
        }
