"""A ladder: a table whose rows are each method with every size, length and number of workers.

Training lasts 20 tokens a parameter (Hoffmann et al., 2022), a single epoch, or a multiple of that,
its length, with a schedule of its own. Across sizes the whole batch grows as the root of the
tokens, as critical batch sizes do (Zhang et al., 2024); it does not depend on the number of
workers, which share it, nor on the length, which is more steps. A method's learning rate, tuned at
one size for each length, is carried to other sizes over their width (Yang et al., 2022) and times
the root of their batch, as is right for Adam (Malladi et al., 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.dataclasses import dataclass

from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.runner.conf_files import CHECKED, Texts

RATE = "optimizer.lr"


@dataclass(frozen=True, config=CHECKED)
class Size:
    """A size of the model, with its training."""

    parameters: int
    width: int
    windows: int  # in a step of all workers together
    steps: int  # of length 1
    lengths: tuple[int, ...]


@dataclass(frozen=True, config=CHECKED)
class HeldOut:
    """A cell that is predicted from the others, and the rows that run there."""

    size: str
    workers: int
    length: int
    rows: Texts


@dataclass(frozen=True, config=CHECKED)
class Tick:
    """A place on the map's axis: workers that compute so fast, each with such a link."""

    title: str
    workers: int
    flops: float  # operations a second of a worker
    of: str  # what has so many
    link: str  # of conf/links.yaml


@dataclass(frozen=True, config=CHECKED)
class Map:
    """The assumptions of the map of a ladder's answer, and the ticks of its axis."""

    tokens: int  # of a worker in a step
    buckets: int  # of the dense gradient
    device: str  # whose coding counts
    ticks: tuple[Tick, ...]


class Cell(NamedTuple):
    """A place of rows on a ladder: the size, the workers and the length of training."""

    size: str
    workers: int
    length: int

    @classmethod
    def of(cls, name: str) -> Cell:
        """Return the cell of a row by its name, such as qsgd_30k_4_16."""
        size, workers, length = name.rsplit("_", 3)[1:]
        return cls(size, int(workers), int(length))


@dataclass(frozen=True, config=CHECKED)
class Ladder:
    """The sizes, lengths and numbers of workers of a table; its first row is the dense one.

    The dense row runs with one worker only, as more of them compute the same.
    """

    context: int  # tokens in a window
    sizes: Mapping[str, Size]
    workers: tuple[int, ...]
    tuned: tuple[str, int]  # the size, and the workers, of the rows as they stand in the file
    held_out: tuple[HeldOut, ...]
    map: Map

    def rows(self, nodes: Sequence[Config], table: str, path: Path) -> list[Config]:
        """Return the table's rows, the smallest size first; `nodes` are those in its file.

        A node's `workers` replaces those of the ladder at length 1, and its `rates` its rate at
        other lengths. `over_width: {rank: 24}` makes its rank the width over 24.
        """
        for name in (self.tuned[0], *(cell.size for cell in self.held_out)):
            if name not in self.sizes:
                raise ConfigError(f"{path}: there is no size {name}; type {', '.join(self.sizes)}")
        return [
            self._row(node, table, path, cell)
            for size in self.sizes
            for node in nodes
            for cell in dict.fromkeys(self._cells(node, size, node is nodes[0]))
        ]

    def _cells(self, node: Config, size: str, dense: bool) -> Iterator[Cell]:
        for length in self.sizes[size].lengths:
            own = node.get("workers") if length == 1 else None
            some = (1,) if dense else own or self.workers
            yield from (Cell(size, k, length) for k in some if k <= self.sizes[size].windows)
        for cell in self.held_out:
            if cell.size == size and node["name"] in cell.rows:
                yield Cell(size, 1 if dense else cell.workers, cell.length)

    def _row(self, node: Config, table: str, path: Path, cell: Cell) -> Config:
        name, workers, length = cell
        size, tuned = self.sizes[name], self.sizes[self.tuned[0]]
        if size.windows % workers:
            raise ConfigError(
                f"{path}: {workers} workers cannot share {size.windows} windows; type a multiple"
            )
        settings: dict[str, Any] = {
            "model.width": size.width,
            "dataset.size": size.windows * (size.steps * length * self.context + 1),
            "trainer.workers": workers,
            "trainer.batch_size": size.windows // workers,
        }
        for key, over in node.get("over_width", {}).items():
            settings[key] = max(1, round(size.width / over))
        own = node["runs"][RATE]
        rate = node.get("rates", {}).get(length, own)
        if size != tuned:  # at whose own rate the row shows what else was tried
            rate = float(
                f"{rate * tuned.width / size.width * sqrt(size.windows / tuned.windows):.3g}"
            )
        if rate != own:
            settings[RATE] = rate
        return {
            "experiment": f"{table}/{node['name']}",
            "name": f"{node['name']}_{name}_{workers}_{length}",
            "title": node["title"],
            "group": f"{name}, K = {workers}" + f", T = {length}" * (length > 1),
            "with": settings,
        }
