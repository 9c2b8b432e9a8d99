"""Names that users give to runs."""

from __future__ import annotations

from typing import Any

from gcbench.config.errors import ConfigError

LONGEST = 150  # bytes; a file system allows 255 for a name, to which knobs, seed and hash are added
NAME_HINT = (
    "type a name of printable characters that has no slash, starts with no dot or dash and takes "
    f"no more than {LONGEST} bytes, as in name=first-try"
)


def is_folder_name(name: str) -> bool:
    """Return whether a name can be a folder, and is not read as an option when it is typed."""
    return (
        bool(name)
        and name.isprintable()
        and not set(name) & set("/\\")
        and name[0] not in ".-"
        and len(name.encode()) <= LONGEST
    )


def refuse_name(name: Any) -> None:
    """Raise ConfigError for a name that no folder can have."""
    if isinstance(name, str) and not is_folder_name(name):
        raise ConfigError(f"name={name!r}: {NAME_HINT}")
