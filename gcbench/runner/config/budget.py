"""Budgets: smaller runs of the same experiment, made by replacing parts of its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

from gcbench.core.conf import Config, choices_in, read_yaml
from gcbench.core.fields import Count, Fraction, Positive, Settings
from gcbench.runner.conf_files import file_of
from gcbench.runner.config.checks import validate, values_fit

PAPER = "paper"  # the settings of the papers, with nothing made smaller
RECIPE_BATCH = 512  # samples of all workers for which a recipe gives its learning rate

Keys = dict[str, Any]


class Bounds(Settings):
    """Another model in the place of one, and upper bounds of its run."""

    model: str | None = None
    """the model in its place"""
    workers: Count | None = None
    """at most so many"""
    batch_size: Count | None = None
    """at most so many samples of a worker"""
    epochs: Positive | None = None
    """at most so many"""
    max_steps: Count | None = None
    """at most so many, or the H of local steps"""
    keep_steps: bool = False
    """whether epochs first shrink as the batch over all workers does, which keeps the steps"""
    scale_lr: bool = True
    """whether rates follow the total batch (Goyal et al., 2017), or only the number of workers"""


class Recipe(Settings):
    """Settings of a model that replaces another: the row keeps its method and its momentum."""

    model: Keys = {}
    """keys of the model"""
    trainer: Keys = {}
    """keys of the trainer"""
    optimizer: Keys = {}
    """keys of the optimizer"""
    datasets: dict[str, Keys] = {}
    """keys of a chosen data set"""
    schedule: Keys | None = None
    """keys of the schedule"""
    warmup: Fraction = 1.0
    """share of the run in which the rate rises with that schedule"""
    lr: Positive | None = None
    """factor on the row's rate at 512 samples over all workers; with `scale_by_workers`, a worker
    gets its share"""
    methods: dict[str, Keys] = {}
    """for a choice of compressor, keys of the optimizer, such as a rate that is never scaled, and
    `lr_scale`, a factor on the rate of the recipe"""
    optimizers: dict[str, Keys] = {}
    """for a choice of optimizer, keys that replace those of the recipe"""


class Budget(Settings):
    """The keys of conf/budget/NAME.yaml."""

    models: dict[str, Bounds]
    """for a chosen model, or for all others (default)"""
    trainer: Keys = {}
    """keys of the trainer, for every run"""
    datasets: dict[str, Keys] = {}
    """keys of a chosen data set"""
    recipes: dict[str, Recipe] = {}
    """settings of the models that replace others"""

    @staticmethod
    def read(node: Config) -> Budget:
        """Return the budget of a composed file. Raises ConfigError for a key or value in it."""
        plain = deepcopy(node)
        kinds: dict[str, type[Settings]] = {"models": Bounds, "recipes": Recipe}
        for key, kind in kinds.items():
            for name, part in plain.get(key, {}).items():
                plain[key][name] = validate(kind, part, f"budget.{key}.{name}.")
        return validate(Budget, plain, "budget.")


def budget_names() -> list[str]:
    """Return the choices of conf/budget."""
    return choices_in("budget")


def apply_budget(
    budget: Budget, tree: Config, choices: dict[str, str], typed: Collection[str]
) -> None:
    """Apply a budget to `tree` and `choices` in place; what the user typed stays as typed.

    Warm-up is scaled with the epochs; milestones are fractions already.
    """
    if not values_fit(tree, typed):
        return  # nothing is computed with a mistake, which is refused later
    bounds = budget.models.get(choices["model"], budget.models.get("default"))
    _set(tree["trainer"], budget.trainer, "trainer", typed)
    _set(tree["dataset"], budget.datasets.get(choices["dataset"], {}), "dataset", typed)
    if bounds is None:
        return
    if bounds.model:
        _stand_in(tree, bounds.model, choices, typed)
    published_lr = tree["optimizer"]["lr"]
    _shrink(tree, bounds, typed)
    recipe = budget.recipes.get(choices["model"])
    if recipe is not None:
        _follow(tree, recipe, published_lr, choices, typed)


def _stand_in(tree: Config, name: str, choices: dict[str, str], typed: Collection[str]) -> None:
    """Replace the row's model, unless the user typed a model, or keys that this one lacks."""
    model = read_yaml(file_of("model", name))
    keys = {key.partition(".")[2] for key in typed if key.partition(".")[0] == "model"}
    if keys <= set(model):
        choices["model"] = name
        tree["model"] = {**deepcopy(model), **{key: tree["model"][key] for key in keys}}


def _shrink(tree: Config, bounds: Bounds, typed: Collection[str]) -> None:
    trainer = tree["trainer"]
    before = {key: trainer[key] for key in ("workers", "batch_size", "epochs")}
    for key in ("workers", "batch_size", "epochs", "max_steps"):
        if key == "epochs" and bounds.keep_steps and "trainer.epochs" not in typed:
            batches = [sizes["workers"] * sizes["batch_size"] for sizes in (trainer, before)]
            trainer["epochs"] *= batches[0] / batches[1]
        bound = getattr(bounds, key)
        if bound is not None and f"trainer.{key}" not in typed:
            if key == "max_steps" and (every := tree["estimator"].get("every")):
                bound = max(bound, every)  # local steps need H steps for an exchange
            trainer[key] = bound if trainer[key] is None else min(bound, trainer[key])
    recorded, most = trainer["record_gradients"], trainer["max_steps"]
    if recorded and most and "trainer.record_gradients" not in typed:
        trainer["record_gradients"] = [step for step in recorded if step < most]
    if "optimizer.lr" not in typed:
        batch = trainer["batch_size"] / before["batch_size"] if bounds.scale_lr else 1.0
        workers = 1 if _scales_by_workers(tree, typed) else trainer["workers"] / before["workers"]
        tree["optimizer"]["lr"] *= batch * workers
    if "schedule.warmup_epochs" not in typed:
        tree["schedule"]["warmup_epochs"] *= trainer["epochs"] / before["epochs"]


def _follow(
    tree: Config,
    recipe: Recipe,
    published_lr: float,
    choices: dict[str, str],
    typed: Collection[str],
) -> None:
    """Set the keys of a recipe, including those for the chosen optimizer and method."""
    recipe = recipe.model_copy(update=recipe.optimizers.get(choices["optimizer"], {}))
    for group in ("model", "trainer", "optimizer"):
        _set(tree[group], getattr(recipe, group), group, typed)
    _set(tree["dataset"], recipe.datasets.get(choices["dataset"], {}), "dataset", typed)
    if recipe.schedule and not {"schedule", "schedule.kind", "schedule._target_"} & {*typed}:
        choices["schedule"] = recipe.schedule["kind"]
        rise = {"warmup_epochs": recipe.warmup * tree["trainer"]["epochs"]}
        _set(tree["schedule"], recipe.schedule | rise, "schedule", typed)
    if recipe.lr is not None and "optimizer.lr" not in typed:
        batch = tree["trainer"]["workers"] * tree["trainer"]["batch_size"]
        workers = tree["trainer"]["workers"] if _scales_by_workers(tree, typed) else 1
        tree["optimizer"]["lr"] = published_lr * recipe.lr * batch / (RECIPE_BATCH * workers)
    method = dict(recipe.methods.get(choices["compressor"], {}))
    lr_scale = method.pop("lr_scale", 1.0)
    own = {"lr": tree["optimizer"]["lr"] * lr_scale, **method}
    _set(tree["optimizer"], own, "optimizer", typed)


def _scales_by_workers(tree: Config, typed: Collection[str]) -> bool:
    """Return whether the schedule multiplies the rate; a typed scheduler of torch does not."""
    return "schedule._target_" not in typed and bool(tree["schedule"]["scale_by_workers"])


def _set(node: Config, values: Mapping[str, Any], name: str, typed: Collection[str]) -> None:
    for key, value in values.items():
        if f"{name}.{key}" not in typed:
            node[key] = deepcopy(value)
