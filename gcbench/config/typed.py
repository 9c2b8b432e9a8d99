"""What was typed for Hydra, in the words and quotes that its parser reads."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import zip_longest

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from gcbench.config.errors import ConfigError
from gcbench.settings.trainer import OTHER_NAMES

PLAIN = re.compile(r"[\w./:+-]*", re.ASCII)
NOT_TEXT = re.compile(r"[,=\[\](){}'\"\\]")  # what ends a value, or is for the user to close


def readable(overrides: Sequence[str]) -> list[str]:
    """Return overrides with quotes around texts that Hydra cannot read, and keys by one name.

    A ~ is expanded where it is a folder, as shells do it only before an argument. Raises
    ConfigError for values that a shell has split, and for a key that was typed by two names.
    """
    made = []
    for override, following in zip_longest(overrides, overrides[1:], fillvalue=""):
        if "=" in override and (override.endswith(",") or following.startswith(",")):
            several = f"{override} {following}".rstrip()
            raise ConfigError(
                f"{several}: values have no spaces between them; type "
                f"{several.replace(' ', '') if following else several.rstrip(',')}"
            )
        key, equals, value = override.partition("=")
        name = key.lstrip("+~")
        signs = key[: len(key) - len(name)]
        if name in OTHER_NAMES:
            if any(other.lstrip("+").startswith(f"{OTHER_NAMES[name]}=") for other in overrides):
                raise ConfigError(
                    f"{name} and {OTHER_NAMES[name]} are one key; type only {name}={value}"
                )
            name = OTHER_NAMES[name]
        made.append(f"{signs}{name}{equals}{_quoted(value)}")
    return made


def _quoted(value: str) -> str:
    if PLAIN.fullmatch(value) or NOT_TEXT.search(value):
        return value
    try:
        OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return f"'{os.path.expanduser(value)}'"
    return value
