"""Errors of means that are added in a ring of coded values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gcbench.core.errors import ConfigError
from gcbench.papers.studies.gradients import OnRealGradients
from gcbench.papers.studies.study import Row
from gcbench.papers.studies.wire_error import error_of_mean

CODED = tuple(
    f"{name} exchange=ring"
    for name in (
        "mxfp8",
        "mxfp8 rounding=stochastic",
        "mxfp6",
        "mxfp6 format=e3m2",
        "mxfp4",
        "nvfp4",
        "eden bits=5",
        "qsgd bits=5 min_size=0",
    )
)


@dataclass(frozen=True, kw_only=True)
class RingError(OnRealGradients):
    """Error of the mean of recorded gradients whose sum a ring codes again at every hop, by W.

    Han et al. (DynamiQ), 2026, compare such errors. W workers are the recorded ones of
    consecutive steps, of which every step has two by default. `vnmse` is |update - g|^2 / |g|^2
    with their mean g, one for each of at most `groups` groups of workers in a recorded window,
    `of_first` relative to the first method, and `bits` what a worker sends per value, in the mean
    over hops. Takes two minutes, and three more if no gradients are recorded yet.
    """

    methods: Sequence[str] = CODED
    workers: Sequence[int] = (2, 4, 8, 16, 32)
    groups: int = 4

    def rows(self) -> Iterator[Row]:
        windows = self.windows()
        each, most = len(windows[0][0].gradients), max(map(len, windows))
        for workers in self.workers:
            steps = workers // each
            if workers % each or not 0 < steps <= most:
                raise ConfigError(
                    f"workers={workers}: type multiples of {each}, which a recorded step has, up "
                    f"to {each * most}"
                )
            gradients = [
                [moment.tensors() for moment in window[first : first + steps]]
                for window in windows
                for first in range(0, len(window) - steps + 1, steps)[: self.groups]
            ]
            first: list[float] = []
            for method in self.methods:
                found = [
                    error_of_mean(
                        method, {k: torch.cat([step[k] for step in group]) for k in group[0]}
                    )
                    for group in gradients
                ]
                errors = [error for _, error in found]
                first = first or errors
                yield {
                    "row": f"{method}, W={workers}",
                    "method": method,
                    "workers": workers,
                    "bits": found[0][0],
                    "vnmse": errors,
                    "of_first": [error / of for error, of in zip(errors, first, strict=True)],
                }
