"""Content of files from elsewhere, made safe to print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcbench.core.errors import escape


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, made printable.

    Raises OSError, or ValueError that says what is wrong with the content.
    """
    text = path.read_text(encoding="utf-8")
    try:
        return printable(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error


PLAIN = (float, int, bool, type(None))  # most of what curves are made of, and nothing to escape


def printable(value: Any) -> Any:
    """Return `value` with control characters, which a terminal would obey, escaped."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):  # W&B's tables are not dictionaries
        return {
            escape(key) if isinstance(key, str) else key: (
                item if type(item) in PLAIN else printable(item)
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [printable(item) for item in value]
    return value
