"""The command `gcbench predict`."""

from __future__ import annotations

from collections.abc import Sequence

from gcbench.runner.console import show_table
from gcbench.runner.predict.arguments import read_predict


def predict_steps(typed: Sequence[str]) -> None:
    """Print the table that was asked for; raise ConfigError for a mistyped argument."""
    arguments = read_predict(typed)
    # Imported here because it imports torch, which help and error messages do not need.
    from gcbench.runner.predict.tables import answer

    show_table(answer(arguments), arguments.format)
