"""PowerSGD compared with the best approximation of gradients: its error, and its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.core.codecs.low_rank import svd
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, Grads, State
from gcbench.core.errors import ConfigError
from gcbench.core.methods.atomo import Atomo
from gcbench.core.methods.matrices import matrix_shape
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.wrappers.virtual import Stepper, aggregate
from gcbench.core.wrappers.wrappers import ErrorFeedback
from gcbench.papers.studies.gradients import OnRealGradients
from gcbench.papers.studies.study import Row, Study, model_shapes
from gcbench.runner.bench.local import draw_input
from gcbench.runner.bench.timing import Work, seconds
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.data_facts import DATASETS, facts_of
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.predict.subject import shapes_of_model
from gcbench.runner.records.gradients import Recorded


class Errors(NamedTuple):
    """Errors at each step of a window, relative to the squared norm of what is approximated."""

    method: list[float]
    best: list[float]  # of the best approximation of the same matrices


@dataclass(frozen=True, kw_only=True)
class WarmStart(OnRealGradients):
    """Approximation error of PowerSGD with and without warm start: Vogels et al., 2019, section 4.2
    and table 2.

    Approximates the mean gradient of all workers in every recorded window, from its first step on.
    The error is |M - P Q^T|^2 / |M|^2, summed over all matrices without vectors, and is compared
    with that of the best approximation of the same M (its SVD). With error feedback M is the
    gradient plus the method's own residual, as in training. Columns are means over the second
    halves of the windows, and `*_by_step` has every step of every window. Three iterations from a
    random Q are the authors' "best approximation". Takes half a minute, and three minutes if no
    gradients are recorded yet.
    """

    rank: int = 2

    def rows(self) -> Iterator[Row]:
        if self.recorded is None and self.dataset in DATASETS:
            model = resolve(compose_overrides(self._overrides())).model.as_dict()
            shapes = shapes_of_model(model, facts_of(self.model, self.dataset))
            self._refuse_whole_rank(torch.empty(1, *s, device="meta") for s in shapes.values())
        windows = [[_mean_matrices(recorded) for recorded in window] for window in self.windows()]
        if all(len(window) == 1 for window in windows):
            typed = f"recorded={self.recorded}" if self.recorded else f"window={self.window}"
            raise ConfigError(
                f"{typed}: a warm start needs steps that follow each other; "
                "type window=20, or record some with trainer.record_gradients=[100,101,102]"
            )
        self._refuse_whole_rank(windows[0][0].values())
        for title, method in self._methods().items():
            plain, corrected = (
                [_errors(compressor, window, self.rank) for window in windows]
                for compressor in (method, ErrorFeedback(method))
            )
            yield {
                "row": title,
                "vnmse": _late([errors.method for errors in plain]),
                "over_best": _late([_ratios(errors) for errors in plain]),
                "vnmse_with_residual": _late([errors.method for errors in corrected]),
                "over_best_with_residual": _late([_ratios(errors) for errors in corrected]),
                "vnmse_by_step": [errors.method for errors in plain],
                "over_best_by_step": [_ratios(errors) for errors in plain],
                "vnmse_with_residual_by_step": [errors.method for errors in corrected],
                "over_best_with_residual_by_step": [_ratios(errors) for errors in corrected],
            }

    def _refuse_whole_rank(self, tensors: Iterable[Tensor]) -> None:
        """Raise ConfigError if the best approximation of these gradients would leave nothing."""
        largest = max((min(matrix_shape(g)) for g in tensors), default=0)
        if self.rank >= largest:
            advice = f"a rank below {largest}" if largest > 1 else "another model"
            raise ConfigError(
                f"rank={self.rank}: no matrix has a higher rank than {largest}, and the best "
                f"approximation leaves nothing to compare with; type {advice}"
            )

    def _methods(self) -> dict[str, PowerSGD]:
        return {
            "Warm start": PowerSGD(self.rank),
            "Without warm start": PowerSGD(self.rank, warm_start=False),
            "Three iterations": PowerSGD(self.rank, warm_start=False, iterations=3),
            "Best approximation": PowerSGD(self.rank, svd=True),
        }


def _mean_matrices(recorded: Recorded) -> Grads:
    return {k: g.mean(0, keepdim=True) for k, g in recorded.tensors().items() if g.dim() > 2}


def _errors(compressor: Compressor, window: Sequence[Grads], rank: int) -> Errors:
    """Return the errors of a method, and of the best approximation of that rank."""
    state, errors = State(), Errors([], [])
    for number, grads in enumerate(window):
        residual = state.per_worker
        corrected = {k: g + residual[k] if residual else g for k, g in grads.items()}
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        energy = _energy(corrected.values())
        errors.method.append(
            _energy(corrected[k] - update for k, update in out.update.items()) / energy
        )
        errors.best.append(sum(_left_by_best(m, rank) for m in corrected.values()) / energy)
    return errors


def _energy(tensors: Iterable[Tensor]) -> float:
    return sum(float(t.double().square().sum()) for t in tensors)


def _left_by_best(g: Tensor, rank: int) -> float:
    """Return the squared error of the best rank-`rank` approximation of a matrix `[1, ...]`."""
    values = torch.linalg.svdvals(g.reshape(matrix_shape(g)).double())
    return float(values[rank:].square().sum())


def _ratios(errors: Errors) -> list[float]:
    return [ours / best for ours, best in zip(errors.method, errors.best, strict=True)]


def _late(windows: Sequence[Sequence[float]]) -> float:
    late = [value for window in windows for value in window[len(window) // 2 :]]
    return sum(late) / len(late)


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
