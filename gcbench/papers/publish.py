"""`gcbench report publish`: runs as a data set that others load without gcbench."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcbench.core.errors import ConfigError
from gcbench.papers.reach_map import races_of
from gcbench.runner.identity import digest, format_value
from gcbench.runner.records.environment import checked_out
from gcbench.runner.records.files import replace_file
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.listing import runs_frame
from gcbench.runner.report.measures import MEASURES

if TYPE_CHECKING:
    from pandas import DataFrame

CARD = """---
pretty_name: "gcbench: gradient compression in data-parallel training"
tags: [gradient-compression, distributed-training, benchmark]
configs:
  - {{config_name: runs, data_files: runs.parquet}}
  - {{config_name: curves, data_files: curves.parquet}}
---

# Runs of gcbench

{runs} runs of {configurations} configurations by {methods} methods, and {lines} lines of their
curves. Version {name}: gcbench {version}{commit}; the last run ended on {day}.

    import pandas
    runs = pandas.read_parquet("runs.parquet")        # a row per run
    curves = pandas.read_parquet("curves.parquet")    # joined by the column `run`

- `runs`: what a run was (`model`, `dataset`, `compressor`, `workers`, `seed`, `budget`, `status`),
  its knobs by the keys that gcbench types (`bits`, `optimizer.lr`), and its measures:
  {measures}.
- `curves`: `event` train lines have a loss, test lines scores, after `step` steps and `epoch`
  epochs, and the bits sent by then.
- `map.json`: which method reaches a score first, by link, workers and computation.
"""


def publish(runs: Sequence[RecordedRun], folder: Path) -> list[Path]:
    """Write runs and curves as Parquet, the maps' JSON and a card, and return the files.

    The same runs give the same files but for the version of gcbench. Raises ConfigError if there is
    no run, or pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise ConfigError("publish: Parquet needs the package pyarrow; type pip install pyarrow")
    from pandas import DataFrame

    rows = _plain(runs_frame(runs))
    lines = [{"run": run.place, **line} for run in runs for line in run.read_metrics()]
    curves = _plain(DataFrame(lines))
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("runs.parquet", "curves.parquet", "map.json", "README.md")]
    rows.to_parquet(files[0], index=False, compression="zstd")
    curves.to_parquet(files[1], index=False, compression="zstd")
    replace_file(files[2], json.dumps(list(races_of(runs)), allow_nan=False).encode())
    commit = checked_out().commit
    card = CARD.format(
        runs=len(runs),
        configurations=len({run.result.identity for run in runs}),
        methods=rows["compressor"].nunique(),
        lines=len(curves),
        name=digest(sorted(run.copy_key for run in runs)),
        version=version("gcbench"),
        commit=f" at {commit}" if commit else "",
        day=str(rows["finished"].dropna().max())[:10],
        measures=", ".join(f"`{name}`" for name in MEASURES),
    )
    replace_file(files[3], card.encode())
    return files


def _plain(frame: DataFrame) -> DataFrame:
    """Return the frame with columns of one type each, as Parquet has them.

    A knob that is true or a name becomes text.
    """

    def text(value: Any) -> str | None:
        return None if value is None or value != value else format_value(value)

    kinds = {name: {*map(type, frame[name].dropna())} for name in frame}
    mixed = [name for name, found in kinds.items() if len(found) > 1 or found & {list, dict}]
    return frame.assign(**{name: frame[name].map(text) for name in mixed})
