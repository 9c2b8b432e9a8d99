"""The folder of all configuration files, and their contents."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from gcbench.config.errors import ConfigError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times faster


def conf_directory() -> Path:
    """Return conf/ of the checkout, or its copy inside an installed package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    return checkout / "conf" if (checkout / "pyproject.toml").is_file() else package / "conf"


def choices_in(group: str) -> list[str]:
    """Return the choices of a group: the names of its files."""
    return sorted(path.stem for path in (conf_directory() / group).glob("*.yaml"))


def form_in(path: Path) -> str:
    """Return whose form of its method a file has: `paper`, `code`, or `ours` if it does not say."""
    return str((read_yaml(path) or {}).get("form", "ours"))


def top_comment(path: Path) -> list[str]:
    """Return the lines of the comment at the top of a file, without Hydra's `@package` line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return [line.lstrip("# ") for line in comment if "@package" not in line]


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; raise ConfigError if it is not valid YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
