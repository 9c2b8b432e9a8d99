"""Recorded runs as DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pandas import DataFrame

from gcbench.core.errors import ConfigError
from gcbench.runner.records.store import RecordedRun, find_runs
from gcbench.runner.report.listing import runs_frame


def load_runs(*folders: str | Path) -> RunsFrame:
    """Return a DataFrame with one row per run in and below these folders, the oldest first.

        runs = gcbench.load_runs("outputs")
        runs[runs.status == "done"].groupby(["compressor", "bits"]).accuracy.agg(["mean", "std"])
        runs[runs.compressor == "qsgd"].curves()

    Columns are the run's description (`run`, `model`, `compressor`, `seed`, ...), every knob of its
    configuration under its key on the command line (`bits`, `optimizer.lr`, `trainer.epochs`;
    missing if the run has no such knob) and its scores (`accuracy`, `ratio`, `step_milliseconds`,
    ..., as in `gcbench runs`). A run found in several places is one row. Files that are not results
    are skipped with a warning in the log.

    Args:
        *folders: folders of runs, or files of kept runs (`.jsonl.xz`); by default `outputs`.

    Raises:
        ConfigError: if a folder does not exist.
    """
    places = folders or ("outputs",)
    for folder in places:
        if not isinstance(folder, (str, Path)):
            raise TypeError(f"{folder!r}: type folders, as in load_runs('outputs', 'older')")
        if not Path(folder).exists():
            raise ConfigError(
                f"{folder}: there is no such folder; type one that has runs, as in "
                'load_runs("outputs")'
            )
    found = find_runs(places)
    found.warn()
    frame = RunsFrame(runs_frame(found.runs))
    frame.recorded = {run.place: run for run in found.runs}
    return frame


class RunsFrame(DataFrame):  # type: ignore[misc]
    """A DataFrame of runs that can read their curves, even after selecting or sorting rows."""

    _metadata = ["recorded"]  # pandas copies it to frames derived from this one
    recorded: dict[str, RecordedRun]

    @property
    def _constructor(self) -> type[RunsFrame]:
        return RunsFrame

    def __finalize__(self, other: Any, method: str | None = None, **options: Any) -> RunsFrame:
        """Take the runs of all frames that pandas joined: those of a concat, or two of a merge.

        Raises:
            ConfigError: if two different runs have one place, by which curves are found.
        """
        super().__finalize__(other, method=method, **options)
        sides = [getattr(other, side, None) for side in ("left", "right")]
        joined = [
            part for part in [*getattr(other, "objs", ()), *sides] if hasattr(part, "recorded")
        ]
        if joined:
            self.recorded = {}
        for place, run in (item for part in joined for item in part.recorded.items()):
            if self.recorded.setdefault(place, run).copy_key != run.copy_key:
                raise ConfigError(
                    f"{place}: two different runs of these frames have this place; load both at "
                    'once, as in load_runs("/data/a", "/data/b")'
                )
        return self

    def curves(self) -> DataFrame:
        """Return the lines of these runs' `metrics.jsonl`, each with its `run`.

        Lines of `event` "train" have `step`, `loss` and bits; those of "test" have scores. Join
        them with the rows on `run`.

        Raises:
            ConfigError: if the rows have lost the column `run`.
        """
        if "run" not in self:
            raise ConfigError(
                "these rows have no column run, which says whose curves to read; type curves() "
                'where they have it, as in runs[["run", "bits"]].curves()'
            )
        lines = [
            {"run": place, **line}
            for place in self["run"]
            for line in self.recorded[place].read_metrics()
        ]
        return DataFrame(lines)
