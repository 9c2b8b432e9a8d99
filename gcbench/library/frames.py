"""Recorded runs as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pandas import DataFrame

from gcbench.config import ConfigError
from gcbench.records.store import RecordedRun, find_runs
from gcbench.report.listing import runs_frame


def load_runs(*folders: str | Path) -> RunsFrame:
    """Return a row for every run in and below these folders, the oldest first.

        runs = gcbench.load_runs("outputs")
        runs[runs.status == "done"].groupby(["compressor", "bits"]).accuracy.agg(["mean", "std"])
        runs[runs.compressor == "qsgd"].curves()

    Columns are what the run was (`run`, `model`, `compressor`, `seed`, ...), every knob of its
    configuration under the key that one types (`bits`, `optimizer.lr`, `trainer.epochs`; missing
    where the run has none) and its scores (`accuracy`, `ratio`, `step_milliseconds`, ..., as in
    `gcbench runs`). A run that lies in several places is one row. Files that are no results are
    passed over with a warning in the log.

    Args:
        *folders: of runs, or files of kept runs (`.jsonl.xz`); none: `outputs`.

    Raises:
        ConfigError: a folder does not exist.
    """
    places = folders or ("outputs",)
    for folder in places:
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
    """A DataFrame of runs that can read their curves, also when rows were selected or sorted."""

    _metadata = ["recorded"]  # pandas hands it on to what it makes of this frame
    recorded: Mapping[str, RecordedRun]

    @property
    def _constructor(self) -> type[RunsFrame]:
        return RunsFrame

    def curves(self) -> DataFrame:
        """Return the lines of `metrics.jsonl` of these runs, and of which `run` each is.

        Lines are of several kinds: in those of `event` "train" there are `step`, `loss` and bits,
        in those of "test" scores. Join them with the rows on `run`.
        """
        lines = [
            {"run": place, **line}
            for place in self["run"]
            for line in self.recorded[place].read_metrics()
        ]
        return DataFrame(lines)
