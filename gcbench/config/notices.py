"""Notices that are printed before a run starts."""

from __future__ import annotations

from gcbench.config.budget import PAPER
from gcbench.identity import describe_choices
from gcbench.settings.config import RunConfig


def start_notice(config: RunConfig, directory: str) -> str:
    """Return a description of a run that needs no imports that take seconds."""
    workers, device = config.trainer.gpus, config.trainer.device
    where = "GPUs, or the CPU where there are none" if device == "auto" else device
    made_of = describe_choices(config.choices)
    return f"{made_of}: {workers} worker{'s' * (workers > 1)} on {where}, in {directory}"


def notices_of(config: RunConfig) -> list[str]:
    """Return the notices of what a user may not expect of a run."""
    return [*filter(None, (budget_notice(config), learning_rate_notice(config)))]


def learning_rate_notice(config: RunConfig) -> str | None:
    """Return a notice if the learning rate is far from the one that the method's paper used."""
    published = config.method.get("recommended", {}).get("lr")
    lr = config.optimizer["lr"]
    if published is None or published / 10 <= lr <= published * 10:
        return None
    return (
        f"optimizer.lr={lr:g} is more than 10 x off the rate that "
        f"compressor={config.choices['compressor']} was published with; "
        f"type optimizer.lr={published:g} to use that one"
    )


def budget_notice(config: RunConfig) -> str | None:
    """Return a notice of what a budget has made of a run; None for the settings of the paper."""
    trainer, name = config.trainer, config.choices["budget"]
    if name == PAPER:
        return None
    length = (
        f"trainer.max_steps={trainer.max_steps}"
        if trainer.max_steps
        else f"trainer.epochs={trainer.epochs:g}"
    )
    return (
        f"budget={name}: model={config.choices['model']} trainer.gpus={trainer.gpus} "
        f"trainer.batch_size={trainer.batch_size} {length} optimizer.lr={config.optimizer['lr']:g}"
    )
