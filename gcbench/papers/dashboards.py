"""The command `gcbench dashboards`: a workspace and a report in W&B with the same panels.

Runs that differ only in their seeds are one line: they are grouped by experiment, knobs and the
identity of their configuration. Keys are those of gcbench/runner/records/metrics.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

from wandb.errors import Error as WandbError

from gcbench.core.errors import ConfigError
from gcbench.papers import PAPERS
from gcbench.runner.arguments import Arguments, read_arguments
from gcbench.runner.records.metrics import BITS, EPOCH, SECONDS
from gcbench.runner.records.wandb_service import own_settings
from gcbench.runner.settings.groups import OneOf

SCORES = ("test/accuracy", "test/perplexity", "test/loss", "train/loss")
PHASES = ("data", "forward", "backward", "encode", "exchange", "wait", "decode", "update")
AXES = {
    EPOCH: "Epoch",
    BITS: "Bits sent by a worker",
    SECONDS: "Seconds of training",
}
BITS_OF_STEP = ("per_step", "received_per_step", "shannon_per_step")
GROUPED_BY = ("experiment", "label", "identity")  # keys of the configuration


class Dashboards(Arguments):
    """Make a workspace and a report in W&B with the same panels: of all runs and of each paper's,
    or of those that are chosen. They need wandb-workspaces (pip install wandb-workspaces)."""

    usage = "gcbench dashboards ENTITY/PROJECT [key=value ...]"
    examples = """
gcbench dashboards my-team/gcbench
gcbench dashboards my-team/gcbench name=lr-sweep
"""

    paper: Annotated[str, OneOf(tuple(PAPERS))] | None = None
    """runs of this paper's experiments only"""
    name: str | None = None
    """runs that were typed with this name= only"""
    dry_run: bool = False
    """true: prints the specifications as JSON, and changes nothing"""

    def check(self) -> None:
        """Raise ConfigError for what is no project, and for a name that W&B cannot look for."""
        place = " ".join(self.plain)
        if len(self.plain) != 1 or [*map(bool, place.split("/"))] != [True, True]:
            raise ConfigError(f"{place}: type ENTITY/PROJECT, as in my-team/gcbench".lstrip(": "))
        if self.name and self.paper:
            raise ConfigError(f"name={self.name} paper={self.paper}: type only one of them")
        if self.name and set(self.name) & set("<=>"):
            raise ConfigError(
                f"name={self.name}: W&B's filters of runs cannot read <, = or > in a name; type "
                "one without them"
            )


def sections(wr: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield titles and panels, for workspaces and reports alike."""
    for x, title in AXES.items():
        panels = [
            wr.LinePlot(title=f"{y} over {x}", x=x, y=[y], title_x=title, title_y=y) for y in SCORES
        ]
        yield f"Over {title.lower()}", panels
    yield (
        "Which method?",
        [
            wr.ScatterPlot(
                title=f"{y} against the ratio of bits {what}",
                x=wr.SummaryMetric(f"bits/{key}"),
                y=wr.SummaryMetric(y),
                log_x=True,
            )
            for key, what in (("ratio", "sent"), ("received_ratio", "received"))
            for y in ("test/accuracy", "test/perplexity", "test/loss")
        ],
    )
    yield (
        "Time of a step",
        [
            wr.BarPlot(title="Seconds by phase", metrics=[f"time/{phase}" for phase in PHASES]),
            wr.ScalarChart(title="Seconds of a step", metric="time/step"),
        ],
    )
    yield (
        "Compression",
        [
            wr.LinePlot(title="Relative error", x=EPOCH, y=["compression/relative"]),
            wr.LinePlot(title="Cosine with the mean gradient", x=EPOCH, y=["compression/cosine"]),
            wr.BarPlot(title="Bits of a step", metrics=[f"bits/{kind}" for kind in BITS_OF_STEP]),
        ],
    )


class Selection(NamedTuple):
    """The runs of a dashboard."""

    title: str
    about: str
    filters: str = ""  # filter expression of W&B; empty: all runs of the project


def select_runs(paper: str | None, name: str | None) -> list[Selection]:
    """Return the dashboards to make; with neither argument, one of all runs and one per paper."""
    if name:
        return [Selection(name, f"Runs with `name={name}`.", f"Config('name') == {name!r}")]
    everything = [Selection("gcbench", "All runs.")]
    papers = [
        Selection(
            PAPERS[key],
            f"Runs of `+experiment/{key}/...`; `gcbench report table={key}` has the tables beside "
            "the paper's.",
            f"Config('paper') == '{key}'",
        )
        for key in ([paper] if paper else PAPERS)
    ]
    return papers if paper else everything + papers


def workspace(entity: str, project: str, runs: Selection) -> Any:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    titled = enumerate(sections(wr))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=runs.title,
        sections=[ws.Section(name=t, panels=panels, is_open=i < 2) for i, (t, panels) in titled],
        runset_settings=ws.RunsetSettings(
            filters=runs.filters, groupby=[ws.Config(key) for key in GROUPED_BY]
        ),
    )


def report(entity: str, project: str, runs: Selection) -> Any:
    import wandb_workspaces.reports.v2 as wr

    blocks = [wr.MarkdownBlock(text=runs.about)]
    for title, panels in sections(wr):
        runset = wr.Runset(
            name=runs.title,
            filters=runs.filters,
            groupby=[f"config.{key}" for key in GROUPED_BY],
        )
        blocks += [wr.H2(text=title), wr.PanelGrid(runsets=[runset], panels=panels)]
    return wr.Report(
        entity=entity,
        project=project,
        title=runs.title,
        description="Made by gcbench dashboards",
        blocks=blocks,
    )


def dashboards(typed: Sequence[str]) -> None:
    """Make the dashboards that were asked for, or print what they would be."""
    arguments = read_arguments(Dashboards, typed)
    (place,) = arguments.plain
    entity, _, project = place.partition("/")
    if find_spec("wandb_workspaces") is None:
        raise ConfigError("dashboards need wandb-workspaces; type pip install wandb-workspaces")
    if not arguments.dry_run:
        own_settings()  # which W&B then uses, and not others that lie in the working directory
    for runs in select_runs(arguments.paper, arguments.name):
        for dashboard in (workspace(entity, project, runs), report(entity, project, runs)):
            if arguments.dry_run:
                print(json.dumps(specification(dashboard)))
                continue
            try:
                dashboard.save()
            except WandbError as error:
                raise ConfigError(str(error)) from error
            print(dashboard.url)


def specification(dashboard: Any) -> dict[str, Any]:
    """Return what would be sent to the server, validated by the library's own schema."""
    return dict(json.loads(dashboard._to_model().model_dump_json()))
