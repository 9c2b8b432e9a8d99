"""Throughput on clusters of hundreds of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gcbench.predict.clusters import SCENES, study_rows
from gcbench.studies.study import Row, Study


@dataclass(frozen=True, kw_only=True)
class ThroughputModel(Study):
    """Predicted images a second: Vineeth S (QSGDMaxNorm), 2021, figures 11 to 14, and Wu et al. (ECQ-SGD), 2018, figure 6.

    What methods send is counted from their steps, seconds of computation and coding are those of conf/profile, which says what
    is derived, and collectives take what gcbench/comm/network.py says. No chance in it; a minute.
    """

    tables: tuple[str, ...] = tuple(SCENES)

    def rows(self) -> Iterator[Row]:
        for name in self.tables:
            yield from study_rows(name)
