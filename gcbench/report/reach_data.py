"""Times to a score as JSON: beside the map, and in the page that draws it for any computation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gcbench.comm.network import Link
from gcbench.predict.model import Cluster, Method, predict
from gcbench.predict.recorded import INSTANT
from gcbench.predict.target import First
from gcbench.records.store import RecordedRun
from gcbench.report.figures.tracks import track
from gcbench.report.reach import RATES, WORKERS, Contender, Race, race_of
from gcbench.report.rows import group_runs
from gcbench.report.tables import read_table, table_names


def as_json(race: Race, cells: Mapping[float, list[list[First | None]]]) -> dict[str, Any]:
    """Return the map by target, number of workers and rate, and all that it is made of.

    A cell has who is first, the next one's time over its own, the next one, and whether that is
    beyond what seeds differ.
    """
    maps = {
        f"{target:g}": [[c and c._replace(margin=_round(c.margin)) for c in row] for row in rows]
        for target, rows in cells.items()
    }
    return {**_profile(race), "rates": [*map(_round, RATES)], "maps": maps}


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def races(runs: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield what a page needs to draw the maps of all tables with such runs."""
    for table in map(read_table, table_names()):
        for budget in table.reach.targets if table.reach else ():
            race = race_of(table, group_runs(table, runs, budget))
            if race:
                yield {"table": table.name, "budget": budget, **_profile(race)}


def _profile(race: Race) -> dict[str, Any]:
    return {
        "score": race.score,
        "targets": race.targets,
        "compute_seconds": race.settings.compute_seconds,
        "backward_share": race.device.backward_share,
        "workers": WORKERS,
        "methods": [_method(race, one) for one in (*race.contenders, *race.overlapped)],
    }


def _method(race: Race, one: Contender) -> dict[str, Any]:
    """Return curves over steps, and by exchange and workers what a step waits for and codes."""
    tracks = [track(run, race.score, "step") for run in one.runs]
    return {
        "label": one.label,
        "dense": one.own.family == "none" and one.own.every == 1 and not one.overlap[0],
        "buckets": math.ceil(one.own.dense_bytes / one.overlap[1]) if one.overlap[0] else 1,
        "curves": [[[*map(float, t.step)], [*map(_round, t.y)]] for t in tracks if t],
        "costs": {
            exchange: {w: [_round(c) for c in _costs(method, w, race)] for w in WORKERS}
            for exchange, method in one.forms.items()
        },
    }


def _costs(method: Method, workers: int, race: Race) -> tuple[float, float, float]:
    """Return how many latencies and bits a step waits for, and the seconds of its coding."""
    by_latency, by_bits = (
        predict(method, workers, Cluster(link, INSTANT), race.compute)
        for link in (Link(math.inf, 1), Link(1))
    )
    return by_latency.exchange_seconds, by_bits.exchange_seconds, by_latency.codec_seconds
