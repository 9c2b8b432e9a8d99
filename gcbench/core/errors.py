"""Errors that say in one sentence what was meant, names like a typed one, and safe reasons.

A reason can be printed, stored and sent, whatever an exception says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

LONGEST = 2000  # characters of a reason


class ConfigError(ValueError):
    """A user's mistake; one sentence names the key, its value and what to type instead."""


class IdleKeyError(ConfigError):
    """A typed key that has no effect with the other keys."""


def folded(name: str) -> str:
    """Return a name without what people write differently: case, dashes, underscores, dots."""
    return re.sub(r"[-_.]", "", name.casefold())


def as_known(typed: str, known: Iterable[str]) -> str:
    """Return the only known name that is `typed` when folded, such as top_k for Top-K; or `typed`.

    A name that is known as it was typed is meant.
    """
    names = {*known}
    alike = [name for name in names if folded(name) == folded(typed)]
    return alike[0] if typed not in names and len(alike) == 1 else typed


def nearest(typed: str, known: Iterable[str], most: int = 3, like: float = 0.6) -> list[str]:
    """Return the names that may have been meant, the likeliest first; `like` of 1 means equal."""
    names: dict[str, list[str]] = {}
    for name in known:
        names.setdefault(folded(name), []).append(name)
    close = get_close_matches(folded(typed), names, n=most, cutoff=like)
    return [name for one in close for name in names[one]][:most]


def near(typed: str, known: Iterable[str], ending: str = "") -> str:
    """Return the names like `typed`, joined by "or"; an empty text if there are none."""
    return " or ".join(name + ending for name in nearest(typed, known, like=0.5))


def name_first(names: Sequence[str], count: int) -> str:
    """Return the first `count` names and the number of others, or all if it is at most one."""
    if len(names) <= count + 1:
        return ", ".join(names)
    return f"{', '.join(names[:count])} and {len(names) - count} more"


def reason_of(error: BaseException) -> str:
    """Return the type and the message of an error."""
    return safe_text(f"{type(error).__name__}: {_message_of(error)}")


def in_one_line(error: BaseException) -> str:
    """Return the type and the first line of an error's message; the second if that only leads on.

    The compiler, for example, says "backend='inductor' raised:" first.
    """
    lines = [line for line in _message_of(error).splitlines() if line.strip()] or [""]
    count = 2 if lines[0].endswith(":") else 1
    return safe_text(f"{type(error).__name__}: {' '.join(lines[:count])}")


def safe_text(text: str, longest: int = LONGEST) -> str:
    """Return a text without anything that a terminal would obey or UTF-8 cannot represent.

    These characters are written out. Of a text longer than `longest`, beginning and end remain.
    """
    if len(text) > longest:
        end = longest // 4
        left_out = f" [... {len(text) - longest:,} characters ...] "
        text = text[: longest - end] + left_out + text[-end:]
    return escape(text)


def escape(text: str) -> str:
    r"""Return a text whose control characters and surrogates are written out, as in `\x1b`."""
    return text if text.isprintable() else "".join(map(_write_out, text))


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:
        return f"(its message raises {type(second).__name__})"


def _write_out(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode()
