"""The cost of singular vectors compared with a step of power iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch

from gcbench.bench.inputs import draw_input
from gcbench.bench.timing import Work, seconds
from gcbench.codecs.low_rank import svd
from gcbench.comm.collectives import Comm
from gcbench.compressors.atomo import Atomo
from gcbench.compressors.matrices import matrix_shape
from gcbench.compressors.powersgd import PowerSGD
from gcbench.compressors.virtual import Stepper
from gcbench.launch.memory import keep_freed_memory
from gcbench.studies.study import Row, Study, model_shapes


@dataclass(frozen=True, kw_only=True)
class SvdCost(Study):
    """Time of an SVD of the gradients, and of Atomo, against PowerSGD: Vogels et al., 2019, section
    4.2 and table 6.

    The paper has 673 ms for the SVD and 105 ms for a whole step of rank 2 with communication, on a
    GPU. This study times one worker's computation on normal gradients in the shapes of `model`,
    without a network: the SVD of every matrix in PowerSGD's shapes, a step of Atomo with its own
    shapes, and a step of PowerSGD that starts from the previous Q. Vectors are left out. Each round
    runs all three in turn, and times are medians over the rounds. Takes about two minutes.
    """

    model: str = "resnet18"
    rank: int = 2
    rounds: int = 3
    threads: int = 1

    def rows(self) -> Iterator[Row]:
        torch.set_num_threads(self.threads)
        keep_freed_memory()
        cpu = torch.device("cpu")
        shapes = model_shapes(f"model={self.model}")
        matrices = {k: g for k, g in draw_input("normal", shapes, cpu).grads.items() if g.dim() > 2}
        works: dict[str, Work] = {
            f"PowerSGD, rank {self.rank}": Stepper(PowerSGD(self.rank), matrices, Comm(1)).step,
            f"Atomo, rank {self.rank}": Stepper(Atomo(self.rank), matrices, Comm(1)).step,
            "SVD of every matrix": lambda: [
                svd(g.reshape(-1, *matrix_shape(g))) for g in matrices.values()
            ],
        }
        rounds = [
            {name: seconds(work, cpu) for name, work in works.items()}
            for _ in range(1 + self.rounds)
        ][1:]
        times = {
            name: median(seconds_by_name[name] for seconds_by_name in rounds) for name in works
        }
        least, *_ = times.values()
        for name, time in times.items():
            yield {"row": name, "milliseconds": 1e3 * time, "over_powersgd": time / least}
