"""Typed keys that have no effect with the other keys; each is refused in one sentence."""

from __future__ import annotations

from typing import Any

from gcbench.config.errors import Config, IdleKeyError
from gcbench.config.help import FACTS
from gcbench.identity import Flat, all_knobs, format_value

# Keys of an error-feedback residual, and the kinds of error_feedback that read them. EF21 and LoCo
# themselves refuse weights other than 1.
KINDS_OF_FEEDBACK = {
    "alpha": (True, "loco", "ef21"),
    "beta": (True, "loco", "ef21"),
    "reset_steps": ("loco",),
    "residual": (True, "loco", "ef21"),
}
# Keys of a schedule that only one kind reads.
KIND_OF_SCHEDULE = {"milestones": "steps", "gamma": "steps", "end_factor": "linear"}
# Keys that are read only if another key is on (or off): that key, and what to type for it.
NEEDED = {
    "warm_start": ("svd", False),
    "schedule.warmup_start": ("schedule.warmup_epochs", 5),
    "dataset.crop_padding": ("dataset.augment", True),
    "dataset.crop_fill": ("dataset.augment", True),
    "dataset.flip": ("dataset.augment", True),
    "trainer.bucket_mib": ("trainer.overlap", True),
    "trainer.eval_batch_size": ("trainer.eval_every", 1),
}


def refuse_idle_keys(config: Config, typed: set[str]) -> None:
    """Raise IdleKeyError for a typed key that nothing reads: a sweep of it would repeat one run."""
    _refuse_facts(typed)
    _refuse_bucket_size(config, typed)
    _refuse_keys_of_a_residual(config, typed)
    _refuse_keys_of_another_schedule(config.get("schedule", {}), typed)
    _refuse_keys_without_another(all_knobs(config), typed)


def _refuse_facts(typed: set[str]) -> None:
    for name in sorted(typed):
        if name.partition(".")[0] in FACTS:
            raise IdleKeyError(
                f"{name}: a method's file says this of it, and nothing is computed with it; leave "
                "it out"
            )


def _refuse_bucket_size(config: Config, typed: set[str]) -> None:
    if config.get("per_layer") and "bucket_size" in typed:
        raise IdleKeyError(
            f"bucket_size={config['bucket_size']} has no effect with per_layer=true, "
            "where every tensor is one bucket; type only one of them"
        )


def _refuse_keys_of_a_residual(config: Config, typed: set[str]) -> None:
    feedback = config["compressor"].get("error_feedback")
    for key, kinds in KINDS_OF_FEEDBACK.items():
        if key in typed and feedback is not None and feedback not in kinds:
            has, reads = (_typed("error_feedback", kind) for kind in (feedback, kinds[0]))
            raise IdleKeyError(
                f"{_typed(key, config[key])} has no effect with {has}; type {reads} too, or leave "
                "it out"
            )


def _refuse_keys_of_another_schedule(schedule: Config, typed: set[str]) -> None:
    if "kind" not in schedule:
        return
    for key, kind in KIND_OF_SCHEDULE.items():
        if f"schedule.{key}" in typed and schedule["kind"] != kind:
            raise IdleKeyError(
                f"{_typed(f'schedule.{key}', schedule[key])} has no effect with "
                f"schedule={schedule['kind']}; type schedule={kind} too, or leave it out"
            )
    if schedule["kind"] == "steps" and not schedule["milestones"]:
        raise IdleKeyError(
            f"{_typed('schedule.milestones', schedule['milestones'])}: with schedule=steps the "
            "rate falls at milestones; type some, as in schedule.milestones=[0.5,0.75], or "
            "schedule=constant"
        )


def _refuse_keys_without_another(flat: Flat, typed: set[str]) -> None:
    for key, (other, wanted) in NEEDED.items():
        if key in typed and other in flat and bool(flat[other]) != bool(wanted):
            raise IdleKeyError(
                f"{_typed(key, flat[key])} has no effect with {_typed(other, flat[other])}; type "
                f"{_typed(other, wanted)} too, or leave it out"
            )


def _typed(key: str, value: Any) -> str:
    return f"{key}={format_value(value)}"
