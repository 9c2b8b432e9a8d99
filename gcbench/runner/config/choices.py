"""The choices of a run: rows of the papers' tables, such as +experiment=powersgd/table4/rank_2, and
what was typed, from Hydra's record of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gcbench.core.conf import Config, conf_directory, read_yaml
from gcbench.core.errors import ConfigError
from gcbench.runner.config.composed import Composed
from gcbench.runner.config.hydra_versions import store
from gcbench.runner.differences import CHOICE_GROUPS, sort_knobs
from gcbench.runner.identity import ELSEWHERE, flatten_config

# Groups whose files have keys.
GROUPS = (
    "compressor",
    "optimizer",
    "schedule",
    "trainer",
    "model",
    "dataset",
    "estimator",
    "network",
    "logger",
    "resume",
)
# Groups whose `_target_` may be typed: it can be any class, which has its own arguments.
WITH_TARGETS = ("model", "dataset", "optimizer", "schedule")
WITH_KINDS = ("optimizer", "schedule")  # groups whose `kind` has the name of its file
# Keys that say how often a run reports, which do not help to tell runs apart.
HOW_OFTEN = {f"trainer.{key}" for key in ("log_every", "eval_every", "error_every")}


def typed_keys(composed: Composed) -> set[str]:
    """Return the keys and groups that the command line names."""
    return {o.lstrip("+~").split("=", 1)[0] for o in composed.typed}


def typed_knobs(composed: Composed, config: Config) -> dict[str, Any]:
    """Return what was typed that changes numbers, except what the run's title already says.

    First come groups with their choices and a method's knobs, then dotted keys.
    """
    named = {"budget"} if config["name"] or config["experiment"] else {*CHOICE_GROUPS, "budget"}
    choices = {k: v for k, v in config["choices"].items() if k not in {*named, *ELSEWHERE}}
    known = {**flatten_config(config), **choices}
    typed = {key.removesuffix("._target_") for key in typed_keys(composed) - HOW_OFTEN}
    return {key: known[key] for key in sort_knobs(typed) if key in known}


def choices_of(composed: Composed) -> dict[str, str]:
    """Return the choice of each group, which is the `kind` or `_target_` if one was typed."""
    chosen = composed.choices.items()
    choices = {k: v for k, v in chosen if "/" not in k and k != "experiment" and isinstance(v, str)}
    typed = typed_keys(composed)
    for group in WITH_TARGETS:
        if {group, f"{group}._target_"} <= typed:
            target = composed.tree[group]["_target_"]
            raise ConfigError(
                f"{group}={choices[group]} {group}._target_={target}: the class has no keys of "
                "the choice; type only one of them"
            )
        if f"{group}._target_" in typed:
            choices[group] = composed.tree[group]["_target_"]
    for group in WITH_KINDS:
        if f"{group}.kind" in typed:
            choices[group] = composed.tree[group]["kind"]
    return choices


def experiment_of(composed: Composed) -> str | None:
    """Return paper/table/row of the experiment that was chosen, or None.

    It may be typed as +experiment=PAPER/TABLE/ROW or +experiment/PAPER/TABLE=ROW. Raises
    ConfigError for more than one, and for one whose keys Hydra has put below `experiment`.
    """
    choices = composed.choices.items()
    chosen = {k: v for k, v in choices if k.partition("/")[0] == "experiment"}
    if len(chosen) > 1:
        raise ConfigError(
            f"{' and '.join(f'+{k}={v}' for k, v in chosen.items())}: a run is one row; "
            "type only one of them"
        )
    experiment = next(
        (f"{group}/{row}".removeprefix("experiment/") for group, row in chosen.items()), None
    )
    if "experiment" in composed.tree:
        raise ConfigError(
            f"+experiment={experiment}: its keys are those of a group, which nothing reads; begin "
            "its file with the line # @package _global_"
        )
    return experiment


def table_directory() -> Path:
    return conf_directory() / "table"


@cache
def runs_in(path: Path) -> dict[str, Config]:
    """Return what each row of a table's file runs, by its name, with the table's settings."""
    table = read_yaml(path) or {}
    runs: dict[str, Config] = {}
    for row in (row for row in table.get("rows") or [] if "runs" in row):
        name = name_of(row, path)
        if name in runs:
            raise ConfigError(f"{path}: two rows with runs: are called {name}; rename one of them")
        inherited = {} if "like" in row["runs"] else {"settings": table.get("settings") or []}
        runs[name] = {**inherited, **row["runs"]}
    return runs


def tables_in(folder: Path) -> list[str]:
    """Return paper/table of every file with rows in conf/table, or a folder like it."""
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.glob("*/*.yaml"))


def name_of(row: Config, path: Path) -> str:
    """Return the name of a row that runs something; raise ConfigError if it has none."""
    name = row.get("name")
    if not isinstance(name, str) or not isinstance(row["runs"], dict):
        raise ConfigError(
            f"{path}: name={name}: a row with runs: has a name, and keys in runs:, as in "
            "{name: rank_2, runs: {compressor: powersgd, rank: 2}}"
        )
    return name


def row_names(table: str) -> list[str]:
    """Return the names of the rows that a table runs; none if there is no such table."""
    path = table_directory() / f"{table}.yaml"
    return sorted(runs_in(path)) if path.is_file() else []


def experiments() -> list[str]:
    """Return paper/table/row of every row that a table runs."""
    return [f"{table}/{row}" for table in tables_in(table_directory()) for row in row_names(table)]


def store_rows(typed: Sequence[str], own_files: bool = False) -> None:
    """Make the rows of those tables choices of Hydra that a command line names.

    It is all rows if it names none of ours, or with `own_files`, which may name any of them.
    """
    text = " ".join(typed)
    if "experiment" in text or own_files:
        tables = tables_in(table_directory())
        for table in [table for table in tables if table in text and not own_files] or tables:
            _store(table)


@cache
def _store(table: str) -> None:
    for name, runs in runs_in(table_directory() / f"{table}.yaml").items():
        store(group=f"experiment/{table}", name=name, node=node_of(runs), package="_global_")
        if "like" in runs:
            _store(runs["like"].rpartition("/")[0])


def node_of(runs: Config) -> Config:
    """Return the file that Hydra would read for a row: its list of defaults and its keys."""
    values: Any = OmegaConf.create({})
    for key, value in runs.items():
        if key not in ("like", "settings") and not _is_choice(key, value):
            OmegaConf.update(values, key, value)
    return {"defaults": list(_defaults(runs)), **values}


def _defaults(runs: Config) -> Iterator[Any]:
    """Yield what a row is made of: another row or settings, then its own choices."""
    if "like" in runs:
        yield f"/experiment/{runs['like']}"
    for setting in runs.get("settings", ()):
        yield f"/setting/{setting}"
    for group, choice in runs.items():
        if _is_choice(group, choice):
            yield {f"override /{group}": choice}
    yield "_self_"


def _is_choice(key: str, value: Any) -> bool:
    return key in GROUPS and isinstance(value, str)
