"""Budgets: smaller runs of the same experiment, made by replacing parts of its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig

from gcbench.core.conf import choices_in, file_of, read_yaml
from gcbench.runner.config.checks import values_fit

PAPER = "paper"  # the settings of the papers, with nothing made smaller
RECIPE_BATCH = 512  # samples of all workers for which a recipe gives its learning rate


def budget_names() -> list[str]:
    """Return the choices of conf/budget."""
    return choices_in("budget")


def apply_budget(
    budget: DictConfig, tree: DictConfig, choices: dict[str, str], typed: Collection[str]
) -> None:
    """Apply a budget to `tree` and `choices` in place; what the user typed stays as typed.

    `budget` (conf/budget/NAME.yaml) has these keys. `models`: for a chosen model, or
    `default`, the `model` that replaces it and upper bounds for `workers`, `batch_size` (per
    worker), `epochs` and `max_steps` (raised to the H of local steps); with `keep_steps: true`, the
    epochs first shrink as the batch over all workers does, so that the row keeps its number of
    steps. `trainer`: keys for every run. `datasets`: keys for a chosen data set. Learning rates are
    scaled with the total batch size (Goyal et al., 2017), or only with the number of workers if the
    model has `scale_lr: false`; warm-up is scaled with the epochs; milestones are fractions
    already.

    `recipes` has settings for a model that replaces another, all of them optional. Keys of model,
    data set, trainer, optimizer and schedule replace the row's, which keeps its method, its form of
    optimizer and its momentum. `lr` multiplies the row's rate for a total batch of 512 samples, and
    is scaled with the batch; with `scale_by_workers` each worker gets its share of it. `warmup` is
    the share of the run in which the rate rises with that schedule. `methods` has keys of the
    optimizer for a choice of compressor, such as a rate that is never scaled, and `lr_scale`, a
    factor on the rate of the recipe. `optimizers` has, for the row's choice of optimizer, keys that
    replace those of the recipe.
    """
    if choices.get("budget") == PAPER:
        return
    if not values_fit(tree, typed):
        return  # nothing is computed with a mistake, which is refused later
    part = budget.models.get(choices["model"], budget.models.get("default"))
    _set(tree.trainer, budget.get("trainer") or {}, "trainer", typed)
    _set(tree.dataset, (budget.get("datasets") or {}).get(choices["dataset"], {}), "dataset", typed)
    if part is None:
        return
    if "model" in part:
        _stand_in(tree, part.model, choices, typed)
    published_lr = tree.optimizer.lr
    _shrink(tree, part, typed)
    recipe = (budget.get("recipes") or {}).get(choices["model"])
    if recipe is not None:
        _follow(tree, recipe, published_lr, choices, typed)


def _stand_in(tree: DictConfig, name: str, choices: dict[str, str], typed: Collection[str]) -> None:
    """Replace the row's model, unless the user typed a model, or keys that this one lacks."""
    model = read_yaml(file_of("model", name))
    keys = {key.partition(".")[2] for key in typed if key.partition(".")[0] == "model"}
    if keys <= set(model):
        choices["model"] = name
        tree.model = {**model, **{key: tree.model[key] for key in keys}}


def _shrink(tree: DictConfig, part: Mapping[str, Any], typed: Collection[str]) -> None:
    trainer = tree.trainer
    before = {key: trainer[key] for key in ("workers", "batch_size", "epochs")}
    for key in ("workers", "batch_size", "epochs", "max_steps"):
        if key == "epochs" and part.get("keep_steps") and "trainer.epochs" not in typed:
            batches = [sizes["workers"] * sizes["batch_size"] for sizes in (trainer, before)]
            trainer.epochs *= batches[0] / batches[1]
        if key in part and f"trainer.{key}" not in typed:
            bound = part[key]
            if key == "max_steps" and (every := tree.estimator.get("every")):
                bound = max(bound, every)  # local steps need H steps for an exchange
            trainer[key] = bound if trainer[key] is None else min(bound, trainer[key])
    if trainer.record_gradients and trainer.max_steps and "trainer.record_gradients" not in typed:
        trainer.record_gradients = [
            step for step in trainer.record_gradients if step < trainer.max_steps
        ]
    if "optimizer.lr" not in typed:
        batch = trainer.batch_size / before["batch_size"] if part.get("scale_lr", True) else 1.0
        workers = 1 if _scales_by_workers(tree, typed) else trainer.workers / before["workers"]
        tree.optimizer.lr *= batch * workers
    if "schedule.warmup_epochs" not in typed:
        tree.schedule.warmup_epochs *= trainer.epochs / before["epochs"]


def _follow(
    tree: DictConfig,
    recipe: Mapping[str, Any],
    published_lr: float,
    choices: dict[str, str],
    typed: Collection[str],
) -> None:
    """Set the keys of a recipe, including those for the chosen optimizer and method."""
    recipe = {**recipe, **recipe.get("optimizers", {}).get(choices["optimizer"], {})}
    for group in ("model", "trainer", "optimizer"):
        _set(tree[group], recipe.get(group, {}), group, typed)
    dataset = recipe.get("datasets", {}).get(choices["dataset"], {})
    _set(tree.dataset, dataset, "dataset", typed)
    if "schedule" in recipe and not {"schedule", "schedule.kind", "schedule._target_"} & {*typed}:
        choices["schedule"] = recipe["schedule"]["kind"]
        _set(tree.schedule, recipe["schedule"], "schedule", typed)
        rise = {"warmup_epochs": recipe["warmup"] * tree.trainer.epochs}
        _set(tree.schedule, rise, "schedule", typed)
    if "lr" in recipe and "optimizer.lr" not in typed:
        batch = tree.trainer.workers * tree.trainer.batch_size
        workers = tree.trainer.workers if _scales_by_workers(tree, typed) else 1
        tree.optimizer.lr = published_lr * recipe["lr"] * batch / (RECIPE_BATCH * workers)
    method = dict(recipe.get("methods", {}).get(choices["compressor"], {}))
    lr_scale = method.pop("lr_scale", 1.0)
    _set(tree.optimizer, {"lr": tree.optimizer.lr * lr_scale, **method}, "optimizer", typed)


def _scales_by_workers(tree: DictConfig, typed: Collection[str]) -> bool:
    """Return whether the schedule multiplies the rate; a typed scheduler of torch does not."""
    return "schedule._target_" not in typed and bool(tree.schedule.scale_by_workers)


def _set(node: DictConfig, values: Mapping[str, Any], name: str, typed: Collection[str]) -> None:
    for key, value in values.items():
        if f"{name}.{key}" not in typed:
            node[key] = value
