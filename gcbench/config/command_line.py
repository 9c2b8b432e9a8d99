"""A command line as a checked configuration, for callers that have no Hydra application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

from gcbench.config.compose import compose_overrides
from gcbench.config.errors import COMPOSITION_ERRORS, Config, ConfigError
from gcbench.config.resolve import resolve
from gcbench.config.run_name import run_directory
from gcbench.config.sentences import sentence_of
from gcbench.settings.config import RunConfig
from gcbench.settings.fields import format_value


def resolve_overrides(overrides: Sequence[str]) -> tuple[RunConfig, str]:
    """Return the checked configuration of a command line, and the directory of its run.

    Raises ConfigError in place of all errors of Hydra and OmegaConf.
    """
    try:
        composed = compose_overrides(overrides)
        return resolve(composed), run_directory(composed)
    except COMPOSITION_ERRORS as error:
        raise ConfigError(sentence_of(error, overrides=overrides)) from error


def resolve_method(overrides: Sequence[str], config_dir: str | None = None) -> Config:
    """Return the checked `compressor` node of a command line like `compressor=qsgd bits=2`.

    Files in `config_dir` count like those in conf/.
    """
    return resolve(compose_overrides(overrides, config_dir)).compressor


def to_overrides(keys: Mapping[str, Any]) -> list[str]:
    """Return Python keys and values as key=value overrides in Hydra's grammar.

    For example, trainer={"epochs": 1} becomes trainer.epochs=1.
    """
    overrides = []
    for name, value in keys.items():
        if isinstance(value, Mapping):
            overrides += to_overrides({f"{name}.{inner}": below for inner, below in value.items()})
        else:
            overrides.append(f"{name}={_quote(name, value)}")
    return overrides


def _quote(name: str, value: Any) -> str:
    if getattr(value, "ndim", None) == 0:  # a number of NumPy or PyTorch
        value = value.item()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_quote(name, entry) for entry in value)}]"
    if isinstance(value, (str, Path)):
        text = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"
    if value is not None and not isinstance(value, (Number, dict)):
        raise ConfigError(
            f"{name}: a {type(value).__name__} is no value of a key; type a number, a text, True, "
            "False or None, or a list of them"
        )
    return format_value(value)
