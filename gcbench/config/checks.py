"""What a composed configuration must be besides well typed; refused in one sentence."""

from __future__ import annotations

from gcbench.config.errors import Config, ConfigError


def check_trainer(trainer: Config) -> None:
    for key in (
        "gpus",
        "nodes",
        "batch_size",
        "accumulate",
        "log_every",
        "eval_batch_size",
        "checkpoint_keep",
    ):
        if trainer[key] < 1:
            raise ConfigError(f"trainer.{key}={trainer[key]}: type a number of at least 1")
    if trainer["epochs"] <= 0:
        raise ConfigError(f"trainer.epochs={trainer['epochs']}: type a number above 0")
    if trainer["max_restarts"] < 0:
        raise ConfigError(
            f"trainer.max_restarts={trainer['max_restarts']}: type a number of at least 0"
        )
    for key in ("timeout_seconds", "bucket_mib"):
        if trainer[key] <= 0:
            raise ConfigError(f"trainer.{key}={trainer[key]}: type a number above 0")
    for key in (
        "max_steps",
        "processes",
        "threads",
        "eval_every",
        "error_every",
        "checkpoint_steps",
        "checkpoint_minutes",
        "drift_every",
    ):
        if trainer[key] is not None and trainer[key] <= 0:
            raise ConfigError(f"trainer.{key}={trainer[key]}: type a number above 0, or null")
    if any(step < 0 for step in trainer["record_gradients"] or []):
        raise ConfigError(
            f"trainer.record_gradients={trainer['record_gradients']}: type steps from 0, as in "
            "trainer.record_gradients=[0,100,500], or null"
        )
    if trainer["processes"] and trainer["gpus"] % trainer["processes"]:
        raise ConfigError(
            f"trainer.processes={trainer['processes']} cannot share trainer.gpus={trainer['gpus']} workers evenly; "
            "type a number of processes that divides them"
        )
    if trainer["batch_size"] % trainer["accumulate"]:
        raise ConfigError(
            f"trainer.accumulate={trainer['accumulate']} cannot split trainer.batch_size={trainer['batch_size']} evenly; "
            "type a number that divides it"
        )


def check_schedule(config: Config) -> None:
    for milestone in config["schedule"]["milestones"] or []:
        if not 0 < milestone < 1:
            raise ConfigError(
                f"schedule.milestones={config['schedule']['milestones']}: type fractions of the run between 0 and 1, "
                "as in schedule.milestones=[0.5,0.75]"
            )
    start = config["schedule"]["warmup_start"]
    if start is not None and not 0 <= start <= 1:
        raise ConfigError(
            f"schedule.warmup_start={start}: type a fraction of the full rate from 0 to 1, as in schedule.warmup_start=0.1, "
            "or null"
        )
    if config["optimizer"]["lr"] <= 0:
        raise ConfigError(
            f"optimizer.lr={config['optimizer']['lr']}: type a rate above 0, as in optimizer.lr=0.05"
        )


def check_kinds(config: Config, choices: dict[str, str]) -> None:
    """The reserved keys `reads` and `kind` are ours; targets never see them."""
    reads, kind = config["model"].pop("reads", None), config["dataset"].pop("kind", None)
    if reads is None or kind is None or kind in reads:
        return
    fitting = {
        "tokens": "dataset=wikitext2",
        "image": "dataset=cifar10",
        "vector": "dataset=synthetic",
        "speech": "dataset=an4",
    }
    models = {
        "tokens": "model=lstm",
        "image": "model=resnet20",
        "vector": "model=mlp",
        "speech": "model=an4_lstm",
    }
    raise ConfigError(
        f"model={choices['model']} reads {' or '.join(reads)}, dataset={choices['dataset']} holds {kind}; "
        f"type {fitting[reads[0]]} or {models[kind]}"
    )
