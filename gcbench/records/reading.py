"""JSON from elsewhere, made safe to print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcbench.reasons import escape

DEEPEST = 40  # levels of nesting; a result has seven


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, made printable.

    Raises OSError, or ValueError that says what is wrong with the content.
    """
    try:
        return printable(json.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise ValueError("is not JSON that anybody would write: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error


def printable(value: Any, depth: int = 0) -> Any:
    """Return `value` with control characters, which a terminal would obey, escaped.

    Raises ValueError if it is nested too deeply.
    """
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):  # W&B's tables are not dictionaries
        return {printable(key): printable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item, depth + 1) for item in value]
    return value
