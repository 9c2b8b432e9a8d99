"""The keys that were typed and the choices that were made, from Hydra's record of them."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from gcbench.config.errors import Config, ConfigError
from gcbench.identity import CHOICE_GROUPS, ELSEWHERE, flatten_config, sort_knobs

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


def typed_keys(composed: DictConfig) -> set[str]:
    """Return the keys and groups that the command line names."""
    return {o.lstrip("+~").split("=", 1)[0] for o in composed.hydra.overrides.task}


def typed_knobs(composed: DictConfig, config: Config) -> dict[str, Any]:
    """Return what was typed that changes numbers, except what the run's title already says.

    First come groups with their choices and a method's knobs, then dotted keys.
    """
    named = {"budget"} if config["name"] or config["experiment"] else {*CHOICE_GROUPS, "budget"}
    choices = {k: v for k, v in config["choices"].items() if k not in {*named, *ELSEWHERE}}
    known = {**flatten_config(config), **choices}
    typed = {key.removesuffix("._target_") for key in typed_keys(composed) - HOW_OFTEN}
    return {key: known[key] for key in sort_knobs(typed) if key in known}


def choices_of(composed: DictConfig) -> dict[str, str]:
    """Return the choice of each group, which is the `kind` or `_target_` if one was typed."""
    chosen = composed.hydra.runtime.choices.items()
    choices = {k: v for k, v in chosen if "/" not in k and k != "experiment" and isinstance(v, str)}
    typed = typed_keys(composed)
    for group in WITH_TARGETS:
        if {group, f"{group}._target_"} <= typed:
            raise ConfigError(
                f"{group}={choices[group]} {group}._target_={composed[group]['_target_']}: the "
                "class has no keys of the choice; type only one of them"
            )
        if f"{group}._target_" in typed:
            choices[group] = composed[group]["_target_"]
    for group in WITH_KINDS:
        if f"{group}.kind" in typed:
            choices[group] = composed[group]["kind"]
    return choices


def experiment_of(composed: DictConfig) -> str | None:
    """Return paper/table/row of the experiment that was chosen, or None.

    It may be typed as +experiment=PAPER/TABLE/ROW or +experiment/PAPER/TABLE=ROW. Raises
    ConfigError for more than one, and for one whose keys Hydra has put below `experiment`.
    """
    choices = composed.hydra.runtime.choices.items()
    chosen = {k: v for k, v in choices if k.partition("/")[0] == "experiment"}
    if len(chosen) > 1:
        raise ConfigError(
            f"{' and '.join(f'+{k}={v}' for k, v in chosen.items())}: a run is one row; "
            "type only one of them"
        )
    experiment = next(
        (f"{group}/{row}".removeprefix("experiment/") for group, row in chosen.items()), None
    )
    if "experiment" in composed:
        raise ConfigError(
            f"+experiment={experiment}: its keys are those of a group, which nothing reads; begin "
            "its file with the line # @package _global_"
        )
    return experiment
