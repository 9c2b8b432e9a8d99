"""Predicted times of steps on clusters: the command `gcbench predict`."""

from __future__ import annotations

from collections.abc import Sequence


def predict_steps(typed: Sequence[str]) -> None:
    """Print the table that was asked for; raise ConfigError for a mistyped argument."""
    from gcbench.console import show_table
    from gcbench.predict.command import read_predict

    arguments = read_predict(typed)
    from gcbench.predict.tables import answer  # imports torch, which help and mistakes do not need

    show_table(answer(arguments), arguments.format)
