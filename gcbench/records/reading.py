"""Files from elsewhere: of a kind and a size that can be read, and made safe to print."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from lzma import LZMAFile
from pathlib import Path
from typing import Any, BinaryIO

from gcbench.reasons import escape

DEEPEST = 40  # levels of nesting; a result has seven
LARGEST = 64 * 2**20  # bytes that are parsed at once; a run with all its curves has less than one
TOO_LARGE = f"more than {LARGEST >> 20} MiB, which no gcbench writes"


def refuse_pipe(path: Path) -> None:
    """Raise ValueError for what is no file, such as a pipe or a device, which may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is no file")


def read_text(path: Path) -> str:
    """Return the text of a file. Raises OSError, or ValueError that says what is wrong with it."""
    refuse_pipe(path)
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"has {TOO_LARGE}")
    return content.decode()


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, one at a time. Raises OSError or ValueError like `read_text`."""
    refuse_pipe(path)
    with path.open("rb") as file:
        yield from limit_lines(file)


def limit_lines(file: BinaryIO | LZMAFile) -> Iterator[bytes]:
    """Yield the lines of a file that is open; raise ValueError for a line that is too large.

    A few compressed bytes may be a line of gigabytes.
    """
    for number, line in enumerate(iter(lambda: file.readline(LARGEST + 1), b""), start=1):
        if len(line) > LARGEST:
            raise ValueError(f"line {number} has {TOO_LARGE}")
        yield line


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, made printable.

    Raises OSError, or ValueError that says what is wrong with the content.
    """
    text = read_text(path)
    try:
        return printable(json.loads(text))
    except RecursionError:
        raise ValueError("is not JSON that anybody would write: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error


PLAIN = (float, int, bool, type(None))  # most of what curves are made of, and nothing to escape


def printable(value: Any, depth: int = 0) -> Any:
    """Return `value` with control characters, which a terminal would obey, escaped.

    Raises ValueError if it is nested too deeply.
    """
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):  # W&B's tables are not dictionaries
        return {
            escape(key) if isinstance(key, str) else key: (
                item if type(item) in PLAIN else printable(item, depth + 1)
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [printable(item, depth + 1) for item in value]
    return value
