"""The types of start.json, which says what a run was begun as; a run that continues reads it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gcbench.records.problems import first_problem, refuse_odd_targets
from gcbench.records.schema import Extended, Git, ReadByName, Record, Resharded


class _Start(Record):
    config: dict[str, Any]
    git: Git
    extended: list[Extended]
    resharded: list[Resharded] = []
    run_id: str | None = None


def check_start(content: Any) -> None:
    """Raise ValueError if the content of start.json lacks what a run needs to continue."""
    try:
        config = _Start.model_validate(content).config
        ReadByName.model_validate({"config": config, "choices": config.get("choices")})
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    refuse_odd_targets(config)
