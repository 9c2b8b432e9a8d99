"""Which method reaches a target score first: epochs of kept curves times predicted seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log
from statistics import fmean
from typing import NamedTuple

from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.runner.console import TextTable
from gcbench.runner.predict.arguments import Pays
from gcbench.runner.predict.devices import format_seconds
from gcbench.runner.predict.model import Method, predict
from gcbench.runner.predict.scenario import Scenario
from gcbench.runner.records.metrics import MAIN_SCORES, where_reached
from gcbench.runner.records.store import RecordedRun, find_runs

LAST = 0.15  # share of a schedule at whose end a target lies for which it was made
SENT = ("exchange", "workers_per_node", "code", "every")  # knobs that are no difference of curves


class First(NamedTuple):
    """The method that reaches a target first."""

    label: str
    margin: float  # the next one's mean time over its own
    next_label: str
    sure: bool  # whether its slowest seed is faster than any seed of the others


def first_of(times: Mapping[str, Sequence[float]]) -> First | None:
    """Return who is first by times of each seed; None if there are none."""
    ranked = sorted(times, key=lambda label: fmean(times[label]))
    if not ranked:
        return None
    first, after = times[ranked[0]], min((min(times[label]) for label in ranked[1:]), default=inf)
    second = fmean(times[ranked[1]]) if ranked[1:] else inf
    return First(ranked[0], second / fmean(first), [*ranked, ""][1], max(first) < after)


def epochs_to(runs: Iterable[RecordedRun], score: str, target: float) -> list[float]:
    """Return the epochs to a target of each run; empty unless every one reaches it."""
    epochs = []
    for run in runs:
        tests = (line for line in run.read_metrics() if line["event"] == "test")
        reached = where_reached(tests, score, target, ["epoch"])
        if reached is None or reached["epoch"] is None:
            return []
        epochs.append(reached["epoch"])
    return epochs


def was_made_for(runs: Iterable[RecordedRun], score: str, target: float) -> bool:
    """Return whether all runs first reach a target in the last 15 % of their schedule.

    Earlier the rate is still high: a run with a schedule that ends there would be sooner.
    """
    lengths = {run.result.epochs or 0.0 for run in runs}
    epochs = epochs_to(runs, score, target)
    return bool(epochs) and min(epochs) >= (1 - LAST) * max(lengths)


class Curves(NamedTuple):
    """The kept runs of one workload, of all lengths."""

    title: str
    score: str
    runs: list[RecordedRun]

    def epochs(self, method: Method, target: float) -> list[float] | None:
        """Return the epochs to a target by seed; empty: never, None: no such runs.

        Of several configurations, such as lengths and rates, it is the fastest of those with most
        seeds.
        """
        tried = (epochs_to(runs, self.score, target) for runs in self._configurations(method))
        return min(tried, key=lambda epochs: fmean(epochs) if epochs else inf, default=None)

    def are_made_for(self, dense: Method, target: float) -> bool:
        """Return whether a schedule of dense training was made for a target."""
        tried = self._configurations(dense)
        return any(was_made_for(runs, self.score, target) for runs in tried)

    @property
    def lengths(self) -> str:
        """Return the lengths of the runs, in epochs."""
        return ", ".join(f"{e:.3g}" for e in sorted({run.result.epochs or 0 for run in self.runs}))

    def ends(self, dense: Method) -> set[float]:
        """Return the scores at which runs without compression end, in the mean over seeds."""
        scores = (
            [
                score
                for run in runs
                if (score := (run.result.test or {}).get(self.score)) is not None
            ]
            for runs in self._configurations(dense)
        )
        return {fmean(some) for some in scores if some}

    def _configurations(self, method: Method) -> list[list[RecordedRun]]:
        by_identity: dict[str, list[RecordedRun]] = {}
        for run in self.runs:
            if _is_of(run, method):
                by_identity.setdefault(run.result.identity, []).append(run)
        most = max(map(len, by_identity.values()), default=0)
        return [runs for runs in by_identity.values() if len(runs) == most]


def _is_of(run: RecordedRun, method: Method) -> bool:
    """Return whether a run is of this method, with the knobs that were typed for it."""
    typed = (knob.split("=", 1) for knob in method.title.split()[1:])
    every = (run.config.get("estimator") or {}).get("every", 1)
    return (run.result.choices["compressor"], every) == (method.family, method.every) and all(
        key in SENT or format_value(run.config.get(key)) == value for key, value in typed
    )


def _title(run: RecordedRun) -> str:
    choices, trainer = run.result.choices, run.config["trainer"]
    table = (run.experiment or "own/").rpartition("/")[0]
    return (
        f"{choices['model']} on {choices['dataset']} ({table}: {run.result.workers or 1} workers x "
        f"{trainer['batch_size']})"
    )


def nearest_curves(arguments: Pays, scenario: Scenario) -> Curves:
    """Return the curves of the kept model that is nearest to the scenario's.

    That is the same model, else one on the same data, if there are any, else the one whose size is
    nearest, and of these the workload with most methods. Raises ConfigError if no schedule of an
    uncompressed run was made for the target.
    """
    target, by_title = arguments.target or 0.0, dict[str, list[RecordedRun]]()
    for run in find_runs(arguments.results).runs:
        if run.done and run.result.test and run.result.parameters:
            by_title.setdefault(_title(run), []).append(run)

    def distance(curves: Curves) -> tuple[bool, bool, float, int]:
        choices, size = curves.runs[0].result.choices, curves.runs[0].result.parameters or 1
        return (
            choices["model"] != arguments.model,
            choices["dataset"] != scenario.dataset,
            abs(log(4 * size / scenario.dense.dense_bytes)),
            -len({run.result.identity for run in curves.runs}),
        )

    every = [
        Curves(title, next(filter((runs[0].result.test or {}).__contains__, MAIN_SCORES)), runs)
        for title, runs in by_title.items()
    ]
    same = [c for c in every if c.runs[0].result.choices["dataset"] == scenario.dataset]
    ranked = sorted(same or every, key=distance)
    found = next((c for c in ranked if c.are_made_for(scenario.dense, target)), None)
    if found is None:
        nearest = ""
        if ranked:
            kept = ranked[0].runs[0].result.choices
            alike = [c for c in ranked if c.runs[0].result.choices["model"] == kept["model"]]
            ends = sorted({round(end, 2) for c in alike for end in c.ends(scenario.dense)})
            nearest = f"; those of {kept['model']} on {kept['dataset']}, the nearest, end at "
            nearest += ", ".join(map(str, ends))
        raise ConfigError(
            f"target={target:g}: no run without compression in "
            f"results={','.join(arguments.results)} has a schedule that ends there{nearest}; type "
            "such a target, or results=FOLDER with your own runs"
        )
    return found


def rank_by_target(
    arguments: Pays, scenario: Scenario, title: str, notes: Sequence[str]
) -> TextTable:
    """Return the table of methods by the time to the target, the first on the first link on top."""
    target, curves = arguments.target or 0.0, nearest_curves(arguments, scenario)
    methods = {m.title: m for m in (scenario.dense, *scenario.methods)}
    epochs = {name: curves.epochs(method, target) for name, method in methods.items()}
    times: dict[str, dict[str, list[float]]] = {}  # by link, method and seed
    for workers in arguments.workers:
        for network, cluster in scenario.clusters.items():
            times[f"W={workers:,} {network}"] = {
                name: [e * step.epoch_seconds(scenario.samples) for e in by_seed]
                for name, by_seed in epochs.items()
                if by_seed
                for step in [
                    predict(methods[name], workers, cluster, scenario.compute, arguments.overlap)
                ]
            }
    dense = {link: fmean(on[scenario.dense.title]) for link, on in times.items()}
    on_first = next(iter(times.values()))
    rows = [
        [name, f"{fmean(epochs[name] or [0]):.2f}", str(len(epochs[name] or []))]
        + [
            f"{format_seconds(t)}, {dense[k] / t:.2f} x"
            for k, on in times.items()
            for t in [fmean(on[name])]
        ]
        for name in sorted(on_first, key=lambda name: fmean(on_first[name]))
    ]
    absent = {
        "Never there in every seed": [name for name, found in epochs.items() if found == []],
        "Without kept curves": {methods[n].family: 0 for n in epochs if epochs[n] is None},
    }
    return TextTable(
        ["method", "epochs", "seeds", *times],
        rows,
        title=f"{title}: time to {curves.score} {target:g}",
        notes=[
            f"Epochs to {curves.score} {target:g} are those of {curves.title}, the nearest kept "
            f"model: of the kept lengths ({curves.lengths} epochs) each method has the one that is "
            "there first. Only dense training surely has a schedule made for it. Yours may need "
            "other epochs, so train those that are close. x: times sooner than none.",
            *(_sentence(link, first) for link, on in times.items() if (first := first_of(on))),
            *(f"{what}: {', '.join(names)}." for what, names in absent.items() if names),
            *notes,
        ],
    )


def _sentence(link: str, first: First) -> str:
    after = f", {first.margin:.2f} times sooner than {first.next_label}" * bool(first.next_label)
    unsure = "" if first.sure else ", within what seeds differ"
    return f"First on {link}: {first.label}{after}{unsure}."
