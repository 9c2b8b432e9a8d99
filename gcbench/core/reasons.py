"""Reasons of failures as text that is safe to print, store and send, whatever an exception says."""

from __future__ import annotations

LONGEST = 2000  # characters of a reason


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
