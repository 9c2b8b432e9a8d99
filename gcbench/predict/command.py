"""The command `gcbench predict`."""

from __future__ import annotations

from collections.abc import Sequence

from gcbench.console import show_table
from gcbench.predict.arguments import read_predict


def predict_steps(typed: Sequence[str]) -> None:
    """Print the table that was asked for; raise ConfigError for a mistyped argument."""
    arguments = read_predict(typed)
    # Imported here because it imports torch, which help and error messages do not need.
    from gcbench.predict.tables import answer

    show_table(answer(arguments), arguments.format)
