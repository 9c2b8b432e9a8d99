"""Names that people give to runs."""

from __future__ import annotations

from typing import Any

from gcbench.config.errors import ConfigError

NAME_HINT = "type a name of printable characters that has no slash and starts with no dot or dash, as in name=first-try"


def is_folder_name(name: str) -> bool:
    """Whether it is one below outputs/, and no option to the commands that people type with it."""
    return (
        bool(name)
        and name.isprintable()
        and not set(name) & set("/\\")
        and name[0] not in ".-"
        and len(name) <= 150
    )


def refuse_name(name: Any) -> None:
    """Before any folder is made of it; what is no text at all is refused with the other knobs."""
    if isinstance(name, str) and not is_folder_name(name):
        raise ConfigError(f"name={name!r}: {NAME_HINT}")
