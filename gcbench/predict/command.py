"""The command `gcbench predict`."""

from __future__ import annotations

from collections.abc import Sequence

from gcbench.console import show_table
from gcbench.predict.arguments import read_predict


def predict_steps(typed: Sequence[str]) -> None:
    """Print what was asked for; raise ConfigError for a mistyped argument."""
    arguments = read_predict(typed)
    from gcbench.predict.tables import answer  # imports torch, which help and mistakes need not

    show_table(answer(arguments), arguments.format)
